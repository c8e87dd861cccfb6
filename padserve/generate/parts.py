"""What each row gives to a step, and the step that they make together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from padserve.attention.cached import Span
from padserve.generate.sequence import Row
from padserve.models.generators.base import Step, Store


@dataclass(frozen=True, slots=True)
class Part:
    """A row's part of a step. ``given``: how many of its tokens; behind the last of them comes its draft."""

    row: Row
    given: int
    source: Any = None

    @property
    def is_last(self) -> bool:
        """Whether the row's last token runs."""
        return self.row.table.computed + self.given == len(self.row.tokens)

    @property
    def count(self) -> int:
        """Tokens that run."""
        return self.given + len(self.row.draft)

    @property
    def places(self) -> int:
        """Places whose logits are wanted: behind the row's last token and behind each one of its draft."""
        return 1 + len(self.row.draft) if self.is_last else 0


def make_step(parts: Sequence[Part], store: Store, block_size: int) -> Step:
    """Parts that look at one source stand side by side."""
    ids: list[int] = []
    positions: list[int] = []
    wanted: list[int] = []
    spans: list[Span] = []
    sources: list[tuple[Any, int]] = []
    for part in parts:
        row, first = part.row, part.row.table.computed
        spans.append(Span(len(ids), part.count, first, row.table.blocks, block_size))
        ids += row.tokens[first : first + part.given] + row.draft
        positions += spans[-1].positions
        wanted += range(len(ids) - part.places, len(ids))
        if part.source is not None:
            before = sources.pop()[1] if sources and sources[-1][0] is part.source else 0
            sources.append((part.source, before + part.count))
    return Step(
        torch.tensor(ids),
        torch.tensor(positions),
        store,
        spans,
        torch.tensor(wanted, dtype=torch.long),
        tuple(sources),
    )


def sound_places(row: Row, places: range, finite: Sequence[bool]) -> range:
    """The places up to the first that is not finite, but for a row's own: no guess makes a row fail."""
    broken = next((place for place in places[1:] if not finite[place]), places.stop)
    del row.draft[broken - places.start - 1 :]
    return range(places.start, broken)
