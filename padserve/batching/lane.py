"""One model's waiting entries: a first-in-first-out line a bucket and priority, and the batch that comes next."""

from collections import deque
from collections.abc import Iterable, Iterator

from padserve.batching.buckets import LengthBuckets
from padserve.batching.entry import Entry

BULK_HANDICAP_S = 2.0
"""A bulk entry counts as if it had come this much later: it yields to interactive ones and still never starves."""


class Lane:
    """``target_tokens``: where a larger batch stops paying on the device. ``padded``: a batch costs rows x longest."""

    def __init__(
        self,
        model: str,
        buckets: LengthBuckets,
        max_batch_tokens: int,
        target_tokens: int,
        padded: bool,
        max_wait_s: float,
    ) -> None:
        self.model = model
        self.buckets = buckets
        self.max_batch_tokens = max_batch_tokens
        self.target_tokens = min(target_tokens, max_batch_tokens)
        self.padded = padded
        self.max_wait_s = max_wait_s
        self.device_s = 0.0  # device time charged, for fairness between lanes
        self.s_per_token = 0.0
        self._lines: dict[tuple[int, bool], deque[Entry]] = {}

    def add(self, entry: Entry) -> None:
        if self.buckets.observe(entry.tokens):
            self._sort_again()
        self._line_of(entry).append(entry)

    def _line_of(self, entry: Entry) -> deque[Entry]:
        key = (self.buckets.index(entry.tokens), entry.priority == "bulk")
        return self._lines.setdefault(key, deque())

    def _sort_again(self) -> None:
        """The edges moved: put every waiting entry into the line of its new bucket, oldest first."""
        waiting = sorted((entry for line in self._lines.values() for entry in line), key=lambda entry: entry.arrived)
        self._lines.clear()
        for entry in waiting:
            self._line_of(entry).append(entry)

    def drop_dead(self, now: float) -> list[Entry]:
        """Take entries that must not run off the heads of the lines: abandoned, or past their deadline."""
        dropped = []
        for line in self._lines.values():
            while line and (line[0].ticket.abandoned or line[0].expired(now)):
                dropped.append(line.popleft())
        return dropped

    def remove(self, entries: Iterable[Entry]) -> list[Entry]:
        """Take those of the entries out that still wait, and return them; one pass over the lines."""
        unwanted = {id(entry) for entry in entries}
        removed = []
        for key, line in self._lines.items():
            found = [entry for entry in line if id(entry) in unwanted]
            if found:
                removed += found
                self._lines[key] = deque(entry for entry in line if id(entry) not in unwanted)
        return removed

    def oldest_arrival(self) -> float | None:
        """When the entry that waits longest came; None when nothing waits."""
        return min((line[0].arrived for line in self._lines.values() if line), default=None)

    def pop_batch(self, budget: int, now: float) -> tuple[list[Entry], list[Entry]]:
        """The next batch within ``budget`` tokens, and the dead entries met on the way.

        The oldest entry always rides, whatever its length; its bucket fills the batch first. A packed batch then
        takes from the other buckets, a padded one does not.
        """
        chosen: list[Entry] = []
        dropped: list[Entry] = []
        longest = total = 0
        for line in self._fill_order():
            while line:
                entry = line[0]
                if entry.ticket.abandoned or entry.expired(now):
                    dropped.append(line.popleft())
                    continue
                longest_then = max(longest, entry.tokens)
                cost = longest_then * (len(chosen) + 1) if self.padded else total + entry.tokens
                if chosen and cost > budget:
                    break
                chosen.append(line.popleft())
                longest, total = longest_then, total + entry.tokens
        return chosen, dropped

    def _fill_order(self) -> Iterator[deque[Entry]]:
        """Lines in the order in which they may fill a batch that starts with the oldest entry."""
        lines = sorted(((due(line[0]), key) for key, line in self._lines.items() if line), key=lambda pair: pair[0])
        if not lines:
            return
        first_bucket = lines[0][1][0]
        keys = [key for _, key in lines]
        same = [key for key in keys if key[0] == first_bucket]
        others = [key for key in keys if key[0] != first_bucket]
        for key in same if self.padded else same + others:
            yield self._lines[key]

    def drain(self) -> list[Entry]:
        """Take everything out."""
        entries = [entry for line in self._lines.values() for entry in line]
        self._lines.clear()
        return entries


def due(entry: Entry) -> float:
    """When an entry counts as having arrived."""
    return entry.arrived + (BULK_HANDICAP_S if entry.priority == "bulk" else 0.0)
