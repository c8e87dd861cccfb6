"""What waits in the queue, and the handle through which its request hears of it."""

import asyncio
from dataclasses import dataclass, replace

from padserve.core import Batch, Encoding, Output, Priority, Timings
from padserve.errors import PadserveError
from padserve.models.pack import pack

Outcome = Output | PadserveError


class Ticket:
    """One request's sequences on their way through a model. Only the event loop's thread changes it.

    ``done`` resolves when every sequence has its outcome; after `abandon` nothing of it runs any more.
    """

    def __init__(self, size: int, done: asyncio.Future[None]) -> None:
        self.outcomes: list[Outcome | None] = [None] * size
        self.timings = Timings()
        self.done = done
        self.abandoned = False
        self._missing = size

    def settle(self, index: int, outcome: Outcome) -> None:
        """Record an outcome; the first one counts, so that an entry ends exactly once."""
        if self.outcomes[index] is not None:
            return
        self.outcomes[index] = outcome
        self._missing -= 1
        if self._missing == 0 and not self.done.done():
            self.done.set_result(None)

    def abandon(self) -> None:
        self.abandoned = True


@dataclass(slots=True, eq=False)
class Entry:
    """One sequence in the queue. Times are `time.perf_counter` seconds."""

    model: str
    encoding: Encoding
    ticket: Ticket
    index: int  # in the ticket
    arrived: float
    priority: Priority = "interactive"
    deadline: float = float("inf")

    @property
    def tokens(self) -> int:
        return len(self.encoding)

    def expired(self, now: float) -> bool:
        return now >= self.deadline


@dataclass(frozen=True, slots=True)
class FormedBatch:
    """Entries that run together, chosen by the scheduler. ``packed``: their `Batch` when it was made ahead."""

    model: str
    entries: list[Entry]
    formed_at: float
    packed: Batch | None = None

    def pack(self) -> "FormedBatch":
        """The same batch, packed; as it is when that fails, for its worker to find the entry at fault."""
        try:
            return replace(self, packed=pack([entry.encoding for entry in self.entries]))
        except ValueError:
            return self

    @property
    def total_tokens(self) -> int:
        return sum(entry.tokens for entry in self.entries)

    @property
    def longest(self) -> int:
        return max(entry.tokens for entry in self.entries)


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What became of a batch: an outcome an entry, and the seconds it ran."""

    batch: FormedBatch
    outcomes: list[Outcome]
    run_s: float

    def deliver(self) -> None:
        """Settle every entry with its ticket. Call in the event loop's thread."""
        for entry, outcome in zip(self.batch.entries, self.outcomes, strict=True):
            timings = entry.ticket.timings
            timings.queue_s = max(timings.queue_s, self.batch.formed_at - entry.arrived)
            timings.run_s = max(timings.run_s, self.run_s)
            timings.batch_tokens, timings.batch_size = self.batch.total_tokens, len(self.batch.entries)
            entry.ticket.settle(entry.index, outcome)
