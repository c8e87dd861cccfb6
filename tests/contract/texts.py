"""Deterministic texts: a small vocabulary that the tokenizers are trained on, and texts of an exact token count."""

import random
from collections.abc import Sequence
from typing import Any

WORDS = [
    "the",
    "a",
    "of",
    "and",
    "in",
    "to",
    "is",
    "was",
    "for",
    "on",
    "that",
    "with",
    "as",
    "by",
    "at",
    "from",
    "it",
    "an",
    "be",
    "this",
    "which",
    "or",
    "are",
    "were",
    "not",
    "have",
    "has",
    "had",
    "but",
    "they",
    "city",
    "river",
    "house",
    "garden",
    "window",
    "table",
    "engine",
    "market",
    "winter",
    "summer",
    "morning",
    "evening",
    "music",
    "doctor",
    "teacher",
    "student",
    "letter",
    "number",
    "island",
    "forest",
    "mountain",
    "village",
    "bridge",
    "castle",
    "kitchen",
    "weather",
    "question",
    "answer",
    "history",
    "science",
    "language",
    "computer",
    "network",
    "packet",
    "server",
    "client",
    "model",
    "tensor",
    "vector",
    "matrix",
    "gradient",
    "kernel",
    "memory",
    "thread",
    "queue",
    "Anna",
    "Boris",
    "Clara",
    "David",
    "Emma",
    "Felix",
    "Greta",
    "Hugo",
    "Paris",
    "London",
    "Berlin",
    "Madrid",
    "Vienna",
    "Oslo",
    "Lisbon",
    "Prague",
    "Acme",
    "Globex",
    "runs",
    "walks",
    "reads",
    "writes",
    "builds",
    "breaks",
    "opens",
    "closes",
    "sells",
    "buys",
    "learns",
    "teaches",
    "counts",
    "sings",
    "dances",
    "sleeps",
    "wakes",
    "small",
    "large",
    "quick",
    "slow",
    "bright",
    "dark",
    "cold",
    "warm",
    "early",
    "late",
    "happy",
    "quiet",
    "loud",
    "empty",
    "full",
    "simple",
    "strange",
    "useful",
    "quickly",
    "slowly",
    "rarely",
    "often",
    "never",
    "always",
    "almost",
    "nearly",
    "together",
    "apart",
    "above",
    "below",
    "behind",
    "before",
    "after",
]
PUNCTUATION = (".", ",", "!", "?", ";")


def sentence(rng: random.Random, words: int) -> str:
    """Text of about ``words`` words, with some punctuation, numbers and capitals."""
    parts = []
    for _ in range(words):
        word = rng.choice(WORDS)
        chance = rng.random()
        if chance < 0.08:
            word = str(rng.randrange(10_000))
        elif chance < 0.2:
            word += rng.choice(PUNCTUATION)
        parts.append(word.capitalize() if rng.random() < 0.1 else word)
    return " ".join(parts)


def corpus(seed: int = 0, lines: int = 400) -> list[str]:
    rng = random.Random(seed)
    return [sentence(rng, rng.randint(4, 20)) for _ in range(lines)] + list(WORDS)


def mixed_texts(seed: int, count: int, longest: int = 40) -> list[str]:
    """``count`` distinct texts whose word counts are skewed to the short side."""
    rng = random.Random(seed)
    lengths = [max(1, int(longest * rng.random() ** 2)) for _ in range(count)]
    return [f"{number} {sentence(rng, length)}" for number, length in enumerate(lengths)]


def count_tokens(tokenizer: Any, text: str, pair: str | None = None) -> int:
    return len(tokenizer(text, pair)["input_ids"])


def text_of(tokenizer: Any, tokens: int, seed: int = 0) -> str:
    """A text of exactly ``tokens`` tokens, special tokens included."""
    rng = random.Random(seed * 1_000 + tokens)
    text = ""
    for _ in range(20 * tokens + 200):
        longer = f"{text} {rng.choice(WORDS)}".strip()
        size = count_tokens(tokenizer, longer)
        if size == tokens:
            return longer
        if size < tokens:
            text = longer
    raise AssertionError(f"no text of {tokens} tokens found, got to {count_tokens(tokenizer, text)}")


def texts_of(tokenizer: Any, lengths: Sequence[int], seed: int = 0) -> list[str]:
    return [text_of(tokenizer, length, seed + position) for position, length in enumerate(lengths)]
