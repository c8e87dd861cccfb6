"""Which model's batch runs next. Pure policy: no tensors, no threads, no clock of its own."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from padserve.batching.entry import Entry, FormedBatch
from padserve.batching.lane import Lane


@dataclass(frozen=True, slots=True)
class Decision:
    """``batch`` may be None; then ``wait_s`` says when to look again (None: at the next arrival)."""

    batch: FormedBatch | None
    dropped: list[Entry]
    wait_s: float | None = None


class Scheduler:
    """Lanes share the device by time: the one that has used least of it and has work goes next."""

    def __init__(self) -> None:
        self.lanes: dict[str, Lane] = {}
        self.tokens: dict[str, int] = {}
        self.depth: dict[str, int] = {}
        self._served_s = 0.0  # device time of the lane served last: where the sharing stands

    def add_lane(self, lane: Lane) -> None:
        self.lanes[lane.model] = lane
        self.tokens[lane.model] = self.depth[lane.model] = 0

    @property
    def waiting_tokens(self) -> int:
        return sum(self.tokens.values())

    def add(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            lane = self.lanes[entry.model]
            if self.depth[entry.model] == 0:
                self._wake(lane)
            lane.add(entry)
            self.tokens[entry.model] += entry.tokens
            self.depth[entry.model] += 1

    def _wake(self, lane: Lane) -> None:
        """A lane that was idle does not get to catch up on the device time that it did not want.

        Start-time fair queueing (Goyal et al. 1996): it joins where the lane served last began.
        """
        lane.device_s = max(lane.device_s, self._served_s)

    def next_batch(self, now: float, idle_workers: int = 1) -> Decision:
        """Form the next batch. ``idle_workers``: those that could run it now, the asking one included."""
        dropped = self._drop_dead(now)
        ready, wait_s = self._ready(now)
        while ready:
            lane = min(ready, key=lambda candidate: candidate.device_s)
            entries, dead = lane.pop_batch(self._budget(lane, idle_workers), now)
            self._forget(lane.model, entries)
            self._forget(lane.model, dead)
            dropped += dead
            if entries:
                batch = FormedBatch(lane.model, entries, now)
                self._served_s = max(self._served_s, lane.device_s)
                lane.device_s += lane.s_per_token * batch.total_tokens
                return Decision(batch, dropped)
            ready.remove(lane)
        return Decision(None, dropped, wait_s)

    def full_batch_waits(self) -> bool:
        """Whether some lane holds more than a batch, so that forming one early costs no arrival its place."""
        return any(self.tokens[name] > lane.target_tokens for name, lane in self.lanes.items())

    def _drop_dead(self, now: float) -> list[Entry]:
        dropped = []
        for lane in self.lanes.values():
            dead = lane.drop_dead(now)
            self._forget(lane.model, dead)
            dropped += dead
        return dropped

    def _ready(self, now: float) -> tuple[list[Lane], float | None]:
        """Lanes whose batch may start, and the shortest time until another one may."""
        ready, waits = [], []
        for lane in self.lanes.values():
            oldest = lane.oldest_arrival()
            if oldest is None:
                continue
            wait_s = oldest + lane.max_wait_s - now
            if lane.max_wait_s == 0 or wait_s <= 0 or self.tokens[lane.model] >= lane.target_tokens:
                ready.append(lane)
            else:
                waits.append(wait_s)
        return ready, min(waits, default=None)

    def _budget(self, lane: Lane, idle_workers: int) -> int:
        """A fair share of what waits, so that no idle worker is left without, up to what pays on the device."""
        share = math.ceil(self.tokens[lane.model] / max(idle_workers, 1))
        return min(lane.target_tokens, max(share, 1))

    def _forget(self, model: str, entries: list[Entry]) -> None:
        self.tokens[model] -= sum(entry.tokens for entry in entries)
        self.depth[model] -= len(entries)

    def discard(self, model: str, entries: Iterable[Entry]) -> None:
        """Take out those of a model's entries that still wait."""
        self._forget(model, self.lanes[model].remove(entries))

    def ran(self, batch: FormedBatch, run_s: float) -> None:
        """Charge what a batch really took in place of what was assumed, and learn from it."""
        lane = self.lanes[batch.model]
        lane.device_s += run_s - lane.s_per_token * batch.total_tokens
        measured = run_s / batch.total_tokens
        lane.s_per_token = measured if lane.s_per_token == 0 else 0.9 * lane.s_per_token + 0.1 * measured

    def drain(self) -> list[Entry]:
        """Take out everything that waits."""
        entries = [entry for lane in self.lanes.values() for entry in lane.drain()]
        for model in self.lanes:
            self.tokens[model] = self.depth[model] = 0
        return entries
