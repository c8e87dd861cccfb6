"""What a search is: it owns the rows of one generation and decides, from their logits, how they go on."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from padserve.core import Emitted, Generated
from padserve.generate.sequence import Row


class StopsText(Protocol):
    def __call__(self, row: Row, *more: int) -> bool:
        """Whether the text of a row's generated tokens, and of these after them, holds a stop string."""


class Rows(Protocol):
    """What a search may do with rows; the engine keeps their cache."""

    def fork(self, row: Row) -> Row:
        """A copy that shares the cache."""

    def free(self, row: Row) -> None:
        """Give the row's cache back."""

    def settle(self, row: Row, accepted: int) -> None:
        """The row has its next tokens, of which so many are the first of its draft: forget the rest of that."""


class Rules(Protocol):
    """What changes a row's scores before a token is chosen."""

    def apply(self, scores: Tensor, row: Row) -> Tensor:
        """``scores``: ``[vocab]`` float32; may be changed in place, what is returned counts."""


class Search(Protocol):
    """``rows``: those that go on, in the order of the logits that `consume` is given."""

    rows: list[Row]

    def consume(self, logits: Tensor, best: Sequence[int], rows: Rows) -> list[Emitted]:
        """Take float32 ``[places, vocab]`` logits for the rows' next tokens, and ``best``, their argmax: of every row
        one place, and one behind each token of its draft, which only rows with a speculation have.

        Tokens are added to rows, rows are forked and freed. Returns the tokens that are certain now.
        """

    @property
    def done(self) -> bool: ...

    def outputs(self) -> list[Generated]:
        """Once done: the outputs, best first."""


def free_all(search: Search, rows: Rows) -> None:
    for row in search.rows:
        rows.free(row)
    search.rows = []
