"""How near a model in a reduced precision is to the stock model in float32 run alone, on built-in samples."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from padserve.core import Encoding, Head, Output
from padserve.models.pack import pack
from padserve.models.probe import WORDS
from padserve.models.runners import Runner
from padserve.text.tokenizer import Tokenizer

Measure = Literal["cosine", "top-1", "correlation"]
BOUNDS: dict[Measure, float] = {"cosine": 0.999, "top-1": 0.98, "correlation": 0.99}
NEAR_TIE = 0.05
"""Of the standard deviation of all outputs: a label so near to the best one is as good as it."""
LENGTHS = (3, 5, 8, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192)
"""Words of the samples."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """``cosine``: the mean over embeddings; ``top-1``: share of equal best labels; ``correlation``: of the scores of a
    model with one label."""

    measure: Measure
    value: float

    @property
    def bound(self) -> float:
        return BOUNDS[self.measure]

    @property
    def passes(self) -> bool:
        return bool(self.value >= self.bound)


@dataclass(frozen=True, slots=True)
class Samples:
    """Sequences and what the stock model in float32 makes of each alone."""

    head: Head
    encodings: tuple[Encoding, ...]
    expected: tuple[Output, ...]

    def agreement(self, runner: Runner) -> Agreement:
        """Run them as one batch and compare."""
        return compare(self.head, self.expected, runner.run(pack(self.encodings)))


def make_samples(
    tokenizer: Tokenizer, head: Head, max_length: int, vocab_size: int, alone: Runner, seed: int
) -> Samples:
    """``alone``: the stock model; ``vocab_size``: the rows of its embedding."""
    encodings = sample_encodings(tokenizer, head, max_length, vocab_size, seed)
    return Samples(head, encodings, tuple(alone.run(pack([encoding]))[0] for encoding in encodings))


def sample_encodings(
    tokenizer: Tokenizer, head: Head, max_length: int, vocab_size: int, seed: int
) -> tuple[Encoding, ...]:
    """Half are plain words, half are random tokens of the vocabulary between the special tokens of a text."""
    rng = np.random.default_rng(seed)
    special = set(tokenizer.all_special_ids)
    known = min(tokenizer.vocab_size, vocab_size)
    ordinary = np.array([token for token in range(known) if token not in special], dtype=np.int64)
    encodings = []
    for number, length in enumerate(LENGTHS):
        encoding = tokenizer.encoding(" ".join(rng.choice(WORDS, size=length)), max_length=max_length)
        if number % 2 and len(ordinary):
            ids = encoding.input_ids
            drawn = rng.choice(ordinary, size=len(ids))
            encoding = replace(encoding, input_ids=np.where(np.isin(ids, list(special)), ids, drawn))
        if head == "masked-lm":
            encoding = replace(encoding, gather=tuple(range(0, len(encoding), 3)))
        encodings.append(encoding)
    return tuple(encodings)


def compare(head: Head, expected: Sequence[Output], got: Sequence[Output]) -> Agreement:
    """Outputs that are not finite agree with nothing."""
    measure: Measure = "cosine" if head == "embedding" else "top-1"
    wanted, found = (np.concatenate([one.reshape(-1, one.shape[-1]) for one in each]) for each in (expected, got))
    if not np.isfinite(found).all():
        return Agreement(measure, -1.0)
    if measure == "cosine":
        return Agreement(measure, float(_cosines(wanted, found).mean()))
    if wanted.shape[1] == 1:
        return Agreement("correlation", _correlation(wanted[:, 0], found[:, 0]))
    chosen = np.take_along_axis(wanted, found.argmax(1)[:, None], 1)[:, 0]
    return Agreement(measure, float(np.mean(wanted.max(1) - chosen <= NEAR_TIE * wanted.std())))


def _cosines(a: Output, b: Output) -> Output:
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosines: Output = (a * b).sum(1) / np.maximum(norms, 1e-12)
    return cosines


def _correlation(a: Output, b: Output) -> float:
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).sum() / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-12))
