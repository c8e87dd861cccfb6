"""The queue between the event loop and the device workers. Nothing polls: threads wait on conditions.

A free worker forms its own batch from all that waits. While every worker is busy and a full batch waits, which no later
arrival could join, that batch is formed and packed ahead by a thread of its own (`prepare_ahead`).
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from padserve.batching.entry import Entry, FormedBatch
from padserve.batching.lane import Lane
from padserve.batching.scheduler import Scheduler
from padserve.errors import Draining
from padserve.telemetry.metrics import Metrics

LOOK_AGAIN_S = 1.0
"""A free worker looks again after so long without being woken, so that no fault in waking can strand a request."""


class BatchQueue:
    """``on_dropped`` is called, in a worker's thread, with entries that were taken out without running."""

    def __init__(self, metrics: Metrics, on_dropped: Callable[[list[Entry]], None]) -> None:
        self._scheduler = Scheduler()
        lock = threading.Lock()
        self._changed = threading.Condition(lock)  # for workers
        self._filled = threading.Condition(lock)  # for `prepare_ahead`
        self._prepared: FormedBatch | None = None
        self._closed = False
        self._idle = 0
        self._metrics = metrics
        self._on_dropped = on_dropped

    def add_lane(self, lane: Lane) -> None:
        with self._changed:
            self._scheduler.add_lane(lane)

    @property
    def waiting_tokens(self) -> int:
        """What has not been taken by a worker, all models together."""
        with self._changed:  # else what is being packed ahead stands in neither place
            prepared = self._prepared
            return self._scheduler.waiting_tokens + (prepared.total_tokens if prepared is not None else 0)

    def depth(self, model: str) -> tuple[int, int]:
        """Sequences and tokens that wait for a model."""
        depth, tokens = self._scheduler.depth.get(model, 0), self._scheduler.tokens.get(model, 0)
        prepared = self._prepared
        if prepared is None or prepared.model != model:
            return depth, tokens
        return depth + len(prepared.entries), tokens + prepared.total_tokens

    def edges(self, model: str) -> tuple[int, ...]:
        return self._scheduler.lanes[model].buckets.edges

    def padded_tokens(self, batch: FormedBatch) -> int:
        """Tokens that run for a batch, padding included."""
        padded = self._scheduler.lanes[batch.model].padded
        return batch.longest * len(batch.entries) if padded else batch.total_tokens

    def seconds_to_clear(self) -> float:
        """Rough device time of all that waits, from the speed measured so far."""
        scheduler = self._scheduler
        return sum(scheduler.tokens[name] * lane.s_per_token for name, lane in scheduler.lanes.items())

    def put(self, entries: Sequence[Entry]) -> None:
        """Errors: `Draining` once the queue is closed."""
        with self._changed:
            if self._closed:
                raise Draining("the server is shutting down; send the request to another replica")
            self._scheduler.add(entries)
            self._report(entries[0].model)
            self._changed.notify(len(entries))
            self._wake_preparer()

    def take(self) -> FormedBatch | None:
        """Block until there is a batch to run; None once the queue is closed and empty."""
        with self._changed:
            self._idle += 1
            try:
                return self._wait_for_batch()
            finally:
                self._idle -= 1
                self._wake_preparer()

    def _wait_for_batch(self) -> FormedBatch | None:
        while True:
            if (prepared := self._take_prepared()) is not None:
                return prepared
            decision = self._scheduler.next_batch(time.perf_counter(), self._idle)
            if decision.dropped:
                self._on_dropped(decision.dropped)
                self._report(*{entry.model for entry in decision.dropped})
            if decision.batch is not None:
                self._report(decision.batch.model)
                return decision.batch
            if self._closed:
                return None
            self._changed.wait(LOOK_AGAIN_S if decision.wait_s is None else min(decision.wait_s, LOOK_AGAIN_S))

    def _take_prepared(self) -> FormedBatch | None:
        """The batch made ahead, without what has been abandoned or has expired since."""
        batch, self._prepared = self._prepared, None
        if batch is None:
            return None
        self._report(batch.model)
        now = time.perf_counter()
        live = [entry for entry in batch.entries if not entry.ticket.abandoned and not entry.expired(now)]
        if len(live) == len(batch.entries):
            return replace(batch, formed_at=now)
        self._on_dropped([entry for entry in batch.entries if entry not in live])
        return FormedBatch(batch.model, live, now) if live else None

    def prepare_ahead(self) -> None:
        """Form and pack full batches while workers are busy; returns when the queue is closed."""
        while True:
            with self._filled:
                self._filled.wait_for(lambda: self._closed or self._may_prepare())
                if self._closed:
                    return
                decision = self._scheduler.next_batch(time.perf_counter())
                if decision.dropped:
                    self._on_dropped(decision.dropped)
                if decision.batch is None:
                    continue
                self._prepared = decision.batch.pack()
                self._report(decision.batch.model)
                self._changed.notify()

    def _wake_preparer(self) -> None:
        if self._may_prepare():
            self._filled.notify()

    def _may_prepare(self) -> bool:
        return self._idle == 0 and self._prepared is None and self._scheduler.full_batch_waits()

    def ran(self, batch: FormedBatch, run_s: float) -> None:
        with self._changed:
            self._scheduler.ran(batch, run_s)

    def discard(self, entries: Sequence[Entry]) -> None:
        """Take out entries of one model that are no longer wanted; those that run already are left alone."""
        with self._changed:
            model = entries[0].model
            self._scheduler.discard(model, entries)
            self._discard_prepared(entries)
            self._report(model)

    def _discard_prepared(self, entries: Sequence[Entry]) -> None:
        batch = self._prepared
        if batch is None or batch.model != entries[0].model:
            return
        unwanted = {id(entry) for entry in entries}
        live = [entry for entry in batch.entries if id(entry) not in unwanted]
        if len(live) < len(batch.entries):
            self._prepared = FormedBatch(batch.model, live, batch.formed_at) if live else None

    def close(self) -> None:
        """Let workers finish what waits, then stop."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._filled.notify_all()

    def drain(self) -> list[Entry]:
        """Take out everything that waits, for its end by error."""
        with self._changed:
            entries = self._scheduler.drain()
            if self._prepared is not None:
                entries += self._prepared.entries
                self._prepared = None
            self._report(*self._scheduler.lanes)
            return entries

    def _report(self, *models: str) -> None:
        for model in models:
            self._metrics.set_queue(model, *self.depth(model))
