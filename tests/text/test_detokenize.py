"""Text of tokens that come one by one, beside the tokenizer's own decode of all of them."""

import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padserve.text.detokenize import Cleanup, Detokenizer
from padserve.text.tokenizer import Tokenizer
from tests.text.vocabularies import KINDS

SEEDS = st.integers(0, 2**32)


@cache
def made(kind: str) -> Tokenizer:
    return KINDS[kind]()


def tokens_of(kind: str, seed: int) -> list[int]:
    """Any tokens, some of them many times in a row; ids that the vocabulary does not have; parts of real text."""
    rng, tokenizer = random.Random(seed), made(kind)
    few = [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randrange(1, 6))]
    found: list[int] = []
    while len(found) < rng.randrange(1, 90):
        way = rng.randrange(5)
        if way == 0:
            found += [rng.choice(few)] * rng.choice([1, 2, 30])
        elif way == 1:
            text = rng.choice(["žluť ✨中文 café", "it 's here , n't it ? ' no '", "a  dog\n\n is . here", "\ufffd"])
            found += tokenizer.tokens(text, add_special_tokens=False).input_ids.tolist()
        elif way == 2:
            found += rng.choices(sorted(tokenizer.all_special_ids), k=rng.randrange(3))
        else:
            found += [rng.randrange(tokenizer.vocab_size + (kind not in ("marian", "byt5"))) for _ in range(3)]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_add_up_to_the_whole(kind: str) -> None:
    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(SEEDS)
    def check(seed: int) -> None:
        tokens = tokens_of(kind, seed)
        detokenizer, pieces = Detokenizer(made(kind)), ""
        for token in tokens:
            pieces += detokenizer.push(token)
        assert pieces + detokenizer.rest() == made(kind).decode(tokens, skip_special_tokens=True)

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_held_back_reads_as_the_text_would_end(kind: str) -> None:
    """At every token, also in a fork, which leaves the one it came of as it is; and tokens may come in groups."""

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(SEEDS)
    def check(seed: int) -> None:
        rng, tokens = random.Random(seed), tokens_of(kind, seed)[:40]
        detokenizer, pieces, place = Detokenizer(made(kind)), "", 0
        while place < len(tokens):
            fork = detokenizer.fork()
            ahead = pieces + fork.push(*tokens[place : place + 5]) + fork.rest()
            assert ahead == made(kind).decode(tokens[: place + 5], skip_special_tokens=True)
            size = rng.choice([1, 1, 1, 4])
            pieces += detokenizer.push(*tokens[place : place + size])
            place += size
            assert pieces + detokenizer.rest() == made(kind).decode(tokens[:place], skip_special_tokens=True)

    check()


@pytest.mark.parametrize("kind", ["byte-level", "metaspace", "WordPiece", "word ends", "marian"])
def test_nothing_but_parts_of_a_character_is_held_back(kind: str) -> None:
    for seed in range(60):
        tokens = tokens_of(kind, seed)
        detokenizer, pieces = Detokenizer(made(kind)), ""
        for place, token in enumerate(tokens, 1):
            pieces += detokenizer.push(token)
            whole = made(kind).decode(tokens[:place], skip_special_tokens=True)
            assert pieces == whole.removesuffix("\ufffd")


@pytest.mark.parametrize("kind", ["byte-level", "byte fallback", "byt5"])
def test_characters_come_whole(kind: str) -> None:
    tokens = made(kind).tokens("žluťoučký✨中文字符café.", add_special_tokens=False).input_ids.tolist()
    detokenizer = Detokenizer(made(kind))
    pieces = [detokenizer.push(token) for token in tokens]
    assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) + detokenizer.rest() == made(kind).decode(tokens) == "žluťoučký✨中文字符café."


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.text(" .?!,'ntmsvre", max_size=4), max_size=12))
def test_cleaning_up_in_pieces(pieces: list[str]) -> None:
    cleanup = Cleanup()
    found = "".join(cleanup.push(piece) for piece in pieces) + cleanup.push("", last=True)
    hf = made("WordPiece, cleaned")._hf
    assert found == hf.clean_up_tokenization("".join(pieces))


def test_an_unknown_clean_up_gives_its_text_at_the_end() -> None:
    hf = made("WordPiece")._hf

    class Shouting(type(hf)):  # type: ignore[misc]
        def clean_up_tokenization(self, text: str) -> str:
            return text.upper()

    shouting = Shouting(tokenizer_object=hf.backend_tokenizer, clean_up_tokenization_spaces=True)
    detokenizer = Detokenizer(Tokenizer(shouting))
    tokens = made("WordPiece").tokens("the quick fox", add_special_tokens=False).input_ids.tolist()
    assert detokenizer.push(*tokens) == ""
    assert detokenizer.rest() == shouting.decode(tokens)
    assert detokenizer.rest().isupper()


def test_a_token_costs_the_same_however_long_the_text_is() -> None:
    """Counted in tokens that are decoded."""

    class Counting(Tokenizer):
        read = 0

        def decode_uncleaned(self, ids: object) -> str:
            self.read += len(ids)  # type: ignore[arg-type]
            return super().decode_uncleaned(ids)  # type: ignore[arg-type]

    costs = []
    for length in (500, 1000):
        tokenizer = Counting(made("byte-level")._hf)
        detokenizer = Detokenizer(tokenizer)
        for seed in range(length):
            detokenizer.push(random.Random(seed).randrange(tokenizer.vocab_size))
        costs.append(tokenizer.read)
    assert costs[1] < 2.2 * costs[0]
    assert costs[1] < 1000 * 20
