"""One sequence that is being generated, and what a generation asks for and gives."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from padserve.generate.blocks import Table

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenDetails:
    """A token that was chosen, and the most likely ones in its place, best first."""

    token_id: int
    logprob: float
    top: tuple[TokenLogprob, ...]


@dataclass(slots=True)
class Row:
    """``tokens``: what the decoder has seen, prompt included, and the token that it is to see next. ``prompt``: how
    many of them were given. ``details``: of the generated ones, when asked for."""

    tokens: list[int]
    prompt: int
    table: Table = field(default_factory=Table)
    details: list[TokenDetails] = field(default_factory=list)

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt :]

    @property
    def pending(self) -> list[int]:
        """Tokens whose keys and values are still to be computed."""
        return self.tokens[self.table.computed :]


@dataclass(frozen=True, slots=True)
class Generated:
    """A finished output. ``tokens``: generated ones only, the end token included. ``score``: of a beam."""

    tokens: tuple[int, ...]
    reason: FinishReason
    score: float | None = None
    details: tuple[TokenDetails, ...] = ()


@dataclass(frozen=True, slots=True)
class Emitted:
    """A token of output ``index``, as soon as it is certain."""

    index: int
    token_id: int
    details: TokenDetails | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """When an output ends."""

    max_new_tokens: int
    end_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()

    def reason(self, generated: Sequence[int]) -> FinishReason | None:
        """Why an output of these tokens ends here; None when it goes on. Stop strings are the caller's to find."""
        if generated and generated[-1] in self.end_ids:
            return "stop"
        return "length" if len(generated) >= self.max_new_tokens else None
