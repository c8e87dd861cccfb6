"""Speculation: tokens that a row may be about to say are run together with its next one, and kept if they come true.

    Drafter.propose -> engine runs them -> search verifies, by the row's own rules -> Drafter.learn

A drafter only guesses. What is generated never depends on it, only how many steps that takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from padserve.core import Speculated


class Drafter(Protocol):
    """Of one row, whose tokens only ever grow."""

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        """What may come after a row's ``tokens``: ``most`` of them or fewer, none where nothing speaks for any."""

    def learn(self, drafted: int, accepted: int) -> None:
        """So many of the last proposal were run, and so many of these accepted."""


@dataclass(slots=True)
class Speculation:
    """One row's drafter and what came of its drafts. ``longest``: tokens that the row may have in all."""

    drafter: Drafter
    longest: int
    counts: Speculated

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        """As the drafter, but none that could not be kept: every step gives one token more than is accepted."""
        most = min(most, self.longest - len(tokens) - 1)
        return self.drafter.propose(tokens, most) if most > 0 else []

    def learn(self, drafted: int, accepted: int) -> None:
        """Count a step of the row that gave tokens."""
        counts = self.counts
        self.counts = replace(
            counts,
            drafted=counts.drafted + drafted,
            accepted=counts.accepted + accepted,
            steps=counts.steps + 1,
        )
        if drafted:
            self.drafter.learn(drafted, accepted)
