"""Device workers: threads that take batches from the queue and run them, and the supervision of those threads.

    queue.take -> execute -> report to the event loop

A worker that dies ends the requests it was running with an error at once, shows as dead, and is started again after
``restart_delay_s``. After ``max_deaths`` deaths within ``deaths_window_s`` the pool gives up and calls ``on_fatal``.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from padserve.batching.entry import BatchReport, FormedBatch, Outcome
from padserve.batching.execute import Run, execute
from padserve.batching.queue import BatchQueue
from padserve.errors import EngineDown, PadserveError
from padserve.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)
STALL_S = 300.0


@dataclass(frozen=True, slots=True)
class Supervision:
    """How deaths are met."""

    restart_delay_s: float = 1.0
    max_deaths: int = 5
    deaths_window_s: float = 60.0


@dataclass(slots=True)
class WorkerState:
    """What one worker is doing. ``batch``: the one it runs now."""

    index: int
    alive: bool = False
    batch: FormedBatch | None = None
    thread: threading.Thread | None = field(default=None, repr=False)

    def complaint(self, now: float) -> str | None:
        """Why this worker is not healthy, None when it is."""
        if self.thread is None:
            return f"worker {self.index} has not been started"
        if not self.alive:
            return f"worker {self.index} died and is being restarted"
        batch = self.batch
        if batch is not None and now - batch.formed_at > STALL_S:
            return f"worker {self.index} has been running one batch for {now - batch.formed_at:.0f} s"
        return None


class WorkerPool:
    """``runs``: how to run a batch of each model; it may grow while workers run. ``report`` and ``on_fatal`` are
    called in a worker's thread; ``prepare`` runs first in every worker thread."""

    def __init__(
        self,
        queue: BatchQueue,
        runs: Mapping[str, Run],
        count: int,
        metrics: Metrics,
        report: Callable[[BatchReport], None],
        on_fatal: Callable[[BaseException], None],
        prepare: Callable[[], None],
        supervision: Supervision | None = None,
    ) -> None:
        self.states = [WorkerState(index) for index in range(count)]
        self._queue, self._runs, self._metrics = queue, runs, metrics
        self._report, self._on_fatal, self._prepare = report, on_fatal, prepare
        self._supervision = supervision or Supervision()
        self._deaths: deque[float] = deque(maxlen=self._supervision.max_deaths)
        self._stopping = threading.Event()

    def start(self) -> None:
        for state in self.states:
            state.thread = threading.Thread(
                target=self._supervise, args=(state,), name=f"padserve-worker-{state.index}", daemon=True
            )
            state.alive = True
            state.thread.start()
        threading.Thread(target=self._queue.prepare_ahead, name="padserve-prepare", daemon=True).start()

    def stop(self, timeout_s: float) -> None:
        """Finish what the closed queue still holds, at most ``timeout_s``."""
        self._stopping.set()
        deadline = time.monotonic() + timeout_s
        for state in self.states:
            if state.thread is not None:
                state.thread.join(max(deadline - time.monotonic(), 0))

    def complaints(self) -> list[str]:
        now = time.perf_counter()
        return [complaint for state in self.states if (complaint := state.complaint(now)) is not None]

    @property
    def alive(self) -> int:
        return sum(state.alive for state in self.states)

    def _supervise(self, state: WorkerState) -> None:
        while True:
            try:
                self._prepare()
                state.alive = True
                self._work(state)
                return
            except BaseException as error:
                if not self._survives(state, error):
                    return

    def _work(self, state: WorkerState) -> None:
        while (batch := self._queue.take()) is not None:
            state.batch = batch
            started = time.perf_counter()
            outcomes = execute(self._runs[batch.model], batch.entries, batch.packed)
            run_s = time.perf_counter() - started
            self._queue.ran(batch, run_s)
            self._count(batch, outcomes, run_s)
            self._report(BatchReport(batch, outcomes, run_s))
            state.batch = None

    def _count(self, batch: FormedBatch, outcomes: list[Outcome], run_s: float) -> None:
        failed = sum(isinstance(outcome, PadserveError) for outcome in outcomes)
        if failed:
            self._metrics.items_failed(batch.model, failed)
        padded_tokens = self._queue.padded_tokens(batch)
        self._metrics.batch_ran(batch.model, len(batch.entries), batch.total_tokens, padded_tokens, run_s)
        for entry in batch.entries:
            self._metrics.queue_waited(batch.model, batch.formed_at - entry.arrived)

    def _survives(self, state: WorkerState, error: BaseException) -> bool:
        """Meet a death; False when the worker is not started again."""
        state.alive = False
        logger.critical("worker %d died", state.index, exc_info=error)
        batch, state.batch = state.batch, None
        if batch is not None:
            self._fail(batch)
        now = time.monotonic()
        self._deaths.append(now)
        if self._gave_up(now):
            self._on_fatal(error)
            return False
        self._metrics.worker_restarted()
        return not self._stopping.wait(self._supervision.restart_delay_s)

    def _gave_up(self, now: float) -> bool:
        full = len(self._deaths) == self._supervision.max_deaths
        return full and now - self._deaths[0] < self._supervision.deaths_window_s

    def _fail(self, batch: FormedBatch) -> None:
        error: PadserveError = EngineDown("the worker that ran this request died; try again")
        self._report(BatchReport(batch, [error] * len(batch.entries), time.perf_counter() - batch.formed_at))
