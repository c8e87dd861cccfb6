"""One sequence that is being generated, and when it ends."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from padserve.core import FinishReason, TokenDetails
from padserve.generate.blocks import Table
from padserve.generate.logits import RowState
from padserve.generate.speculate.base import Speculation
from padserve.text.stops import WatchedText


@dataclass(slots=True)
class Row:
    """``tokens``: what the decoder has seen, prompt included, and the token that it is to see next. ``prompt``: how
    many of them were given. ``details``: of the generated ones, when asked for. ``state``: what rules keep of them,
    ``text``: what the search for stop strings does. ``draft``: guesses of what comes after ``tokens``, that the running
    step computes too."""

    tokens: list[int]
    prompt: int
    table: Table = field(default_factory=Table)
    details: list[TokenDetails] = field(default_factory=list)
    state: RowState | None = None
    text: WatchedText | None = None
    speculation: Speculation | None = None
    draft: list[int] = field(default_factory=list)

    def fork(self, table: Table) -> "Row":
        """A copy with a block table of its own, without a speculation."""
        state = None if self.state is None else self.state.fork()
        text = None if self.text is None else self.text.fork()
        return Row(list(self.tokens), self.prompt, table, list(self.details), state, text)

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt :]

    @property
    def pending(self) -> list[int]:
        """Tokens whose keys and values are still to be computed."""
        return self.tokens[self.table.computed :]


@dataclass(frozen=True, slots=True)
class Limits:
    """When an output ends."""

    max_new_tokens: int
    end_ids: frozenset[int] = frozenset()

    def reason(self, generated: Sequence[int]) -> FinishReason | None:
        """Why an output of these tokens ends here; None when it goes on. Stop strings are the caller's to find."""
        if generated and generated[-1] in self.end_ids:
            return "stop"
        return "length" if len(generated) >= self.max_new_tokens else None
