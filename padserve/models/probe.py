"""A check at load time that a way of running a model equals the stock model run alone, one sequence at a time.

"Exact" is a promise about every checkpoint a user brings, so it is measured on each, not assumed from its family.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from padserve.core import Encoding, Head, Output
from padserve.models.pack import pack
from padserve.models.runners import Runner
from padserve.text.tokenizer import Tokenizer

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "seven",
    "wizards",
    "mix",
    "their",
    "potion",
    "in",
    "an",
    "old",
    "iron",
    "pot",
]
FLOAT32_TOLERANCE = 1e-4
LEAST_SCALE = 0.1
"""Below this the outputs are a difference of larger numbers, whose rounding is not relative to the outputs."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Sequences of unlike lengths and what the stock model in float32 makes of each alone."""

    encodings: tuple[Encoding, ...]
    expected: tuple[Output, ...]

    @property
    def scale(self) -> float:
        return max(LEAST_SCALE, *(float(np.abs(want).max()) for want in self.expected if want.size))

    def error(self, runner: Runner) -> float:
        """Greatest deviation over all outputs, relative to the greatest expected magnitude; inf if not finite."""
        return self._deviation(runner.run(pack(self.encodings)))

    def error_alone(self, runner: Runner) -> float:
        """The same, of sequences run one by one."""
        return self._deviation([runner.run(pack([encoding]))[0] for encoding in self.encodings])

    def _deviation(self, outputs: Sequence[Output]) -> float:
        return max(_difference(got, want) for got, want in zip(outputs, self.expected, strict=True)) / self.scale


def _difference(got: Output, want: Output) -> float:
    if got.shape != want.shape or not np.isfinite(got).all():
        return float("inf")
    return float(np.abs(got - want).max()) if want.size else 0.0


def make_probe(tokenizer: Tokenizer, head: Head, max_length: int, window: int, alone: Runner) -> Probe:
    """``window``: reach of a local attention, so that one sequence is longer than it. ``alone``: the stock model."""
    encodings = probe_encodings(tokenizer, head, max_length, (1, 6, 41, min(2 * window + 37, 400)))
    return Probe(encodings, tuple(alone.run(pack([encoding]))[0] for encoding in encodings))


def probe_encodings(
    tokenizer: Tokenizer, head: Head, max_length: int, word_counts: Sequence[int]
) -> tuple[Encoding, ...]:
    encodings = []
    for count in word_counts:
        words = [WORDS[(7 * i + count) % len(WORDS)] for i in range(count)]
        encoding = tokenizer.encoding(" ".join(words), max_length=max_length)
        if head == "masked-lm":
            encoding = replace(encoding, gather=(len(encoding) // 2, len(encoding) - 1))
        encodings.append(encoding)
    return tuple(encodings)
