"""Workers that die: their requests end at once, health tells, they come back, and give up in the end."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from padserve.batching.entry import BatchReport, Entry, FormedBatch
from padserve.batching.queue import BatchQueue
from padserve.batching.workers import STALL_S, Supervision, WorkerPool, WorkerState
from padserve.core import Batch, Output
from padserve.errors import EngineDown
from padserve.telemetry.metrics import Metrics

PATIENCE_S = 5.0


class Death(BaseException):
    """What no ``except Exception`` catches."""


class Model:
    """Doubles ids; dies when a sequence of ``deadly`` tokens comes, waits for ``gate`` before each batch."""

    def __init__(self) -> None:
        self.deadly = 13
        self.gate = threading.Event()
        self.gate.set()
        self.running = threading.Semaphore(0)

    def __call__(self, batch: Batch) -> list[Output]:
        self.running.release()
        assert self.gate.wait(PATIENCE_S)
        if self.deadly in batch.lengths:
            raise Death("the device is gone")
        return [np.array([length * 2], dtype=np.float32) for length in batch.lengths]


class Crew:
    """A pool, its queue and what it reported."""

    def __init__(self, make_lane: Any, count: int, supervision: Supervision) -> None:
        self.model, self.metrics = Model(), Metrics(["m"], [])
        self.queue = BatchQueue(self.metrics, lambda dropped: None)
        self.queue.add_lane(make_lane("m"))
        self.outcomes: dict[int, Any] = {}
        self.fatal: list[BaseException] = []
        self.reported = threading.Condition()
        self.pool = WorkerPool(
            self.queue,
            {"m": self.model},
            count,
            self.metrics,
            self.report,
            self.fatal.append,
            lambda: None,
            supervision,
        )

    def report(self, report: BatchReport) -> None:
        with self.reported:
            for entry, outcome in zip(report.batch.entries, report.outcomes, strict=True):
                self.outcomes.setdefault(id(entry), outcome)
            self.reported.notify_all()

    def outcome(self, entry: Entry) -> Any:
        with self.reported:
            assert self.reported.wait_for(lambda: id(entry) in self.outcomes, PATIENCE_S), "it never ended"
        outcome = self.outcomes[id(entry)]
        return outcome if isinstance(outcome, Exception) else float(outcome[0])

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, "it did not happen"
            time.sleep(0.002)


@pytest.fixture
def crew(make_lane: Any) -> Iterator[Callable[..., Crew]]:
    """``crew(count, **supervision)``: running workers."""
    crews: list[Crew] = []

    def make(count: int = 1, **settings: Any) -> Crew:
        options = {"restart_delay_s": 0.2, "max_deaths": 5, "deaths_window_s": 60.0} | settings
        crews.append(Crew(make_lane, count, Supervision(**options)))
        crews[-1].pool.start()
        return crews[-1]

    yield make
    for made in crews:
        made.model.gate.set()
        made.queue.close()
        made.pool.stop(PATIENCE_S)
        assert not any(state.thread and state.thread.is_alive() for state in made.pool.states)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1)


def test_every_entry_gets_its_own_output(crew: Any, make_entry: Any) -> None:
    team = crew(count=2)
    entries = [make_entry(1 + index % 12) for index in range(200)]
    for start in range(0, 200, 10):
        team.queue.put(entries[start : start + 10])
    assert [team.outcome(entry) for entry in entries] == [2 * (1 + index % 12) for index in range(200)]
    assert team.pool.complaints() == []


def test_a_death_ends_the_requests_it_met_and_the_worker_returns(crew: Any, make_entry: Any) -> None:
    team = crew(restart_delay_s=0.4)
    deadly, companion = make_entry(13), make_entry(5)
    started = time.monotonic()
    team.queue.put([deadly, companion])
    assert isinstance(team.outcome(deadly), EngineDown)
    assert isinstance(team.outcome(companion), EngineDown)
    assert time.monotonic() - started < 0.3, "they waited for the restart"
    assert team.pool.alive == 0
    assert "worker 0 died" in team.pool.complaints()[0]
    waiting = make_entry(7)
    team.queue.put([waiting])
    assert team.outcome(waiting) == 14
    assert team.pool.complaints() == []
    assert team.pool.alive == 1
    assert b"padserve_worker_restarts_total 1.0" in team.metrics.render()
    assert team.fatal == []


def test_one_death_leaves_the_other_worker_serving(crew: Any, make_entry: Any) -> None:
    team = crew(count=2, restart_delay_s=30.0)
    deadly = make_entry(13)
    team.queue.put([deadly])
    assert isinstance(team.outcome(deadly), EngineDown)
    entries = [make_entry(3) for _ in range(20)]
    team.queue.put(entries)
    assert [team.outcome(entry) for entry in entries] == [6] * 20
    assert len(team.pool.complaints()) == 1


def test_repeated_deaths_are_fatal(crew: Any, make_entry: Any) -> None:
    team = crew(restart_delay_s=0.01, max_deaths=3)
    for count in range(3):
        assert len(team.fatal) == 0, count
        deadly = make_entry(13)
        team.queue.put([deadly])
        assert isinstance(team.outcome(deadly), EngineDown)
    team.wait_until(lambda: len(team.fatal) == 1)
    assert isinstance(team.fatal[0], Death)
    team.wait_until(lambda: not team.pool.states[0].thread.is_alive())
    assert team.pool.alive == 0


def test_deaths_far_apart_are_not_fatal(crew: Any, make_entry: Any) -> None:
    team = crew(restart_delay_s=0.01, max_deaths=2, deaths_window_s=0.0)
    for _ in range(4):
        deadly = make_entry(13)
        team.queue.put([deadly])
        assert isinstance(team.outcome(deadly), EngineDown)
    alive = make_entry(2)
    team.queue.put([alive])
    assert team.outcome(alive) == 4
    assert team.fatal == []


def test_a_failing_count_or_report_does_not_lose_the_batch(crew: Any, make_entry: Any, monkeypatch: Any) -> None:
    """Whatever breaks after the run, the entries still end."""
    team = crew(restart_delay_s=0.01)
    broken = iter([True])

    def batch_ran(*_: Any) -> None:
        if next(broken, False):
            raise RuntimeError("metrics are broken")

    monkeypatch.setattr(team.metrics, "batch_ran", batch_ran)
    first, second = make_entry(3), make_entry(4)
    team.queue.put([first])
    assert isinstance(team.outcome(first), EngineDown)
    team.queue.put([second])
    assert team.outcome(second) == 8


def test_a_worker_that_cannot_prepare_is_supervised_too(make_lane: Any) -> None:
    queue = BatchQueue(Metrics(["m"], []), lambda dropped: None)
    fatal: list[BaseException] = []
    gave_up = threading.Event()

    def prepare() -> None:
        raise RuntimeError("no device")

    def on_fatal(error: BaseException) -> None:
        fatal.append(error)
        gave_up.set()

    supervision = Supervision(0.01, 2, 60.0)
    pool = WorkerPool(queue, {}, 1, Metrics(["m"], []), lambda report: None, on_fatal, prepare, supervision)
    assert pool.complaints() == ["worker 0 has not been started"]
    pool.start()
    assert gave_up.wait(PATIENCE_S)
    assert [str(error) for error in fatal] == ["no device"]
    queue.close()
    pool.stop(PATIENCE_S)


def test_stop_lets_what_waits_finish(crew: Any, make_entry: Any) -> None:
    team = crew()
    team.model.gate.clear()
    entries = [make_entry(60) for _ in range(3)]
    team.queue.put(entries)
    assert team.model.running.acquire(timeout=PATIENCE_S)
    team.queue.close()
    team.model.gate.set()
    team.pool.stop(PATIENCE_S)
    assert [team.outcome(entry) for entry in entries] == [120] * 3


def test_stop_does_not_wait_for_ever(crew: Any, make_entry: Any) -> None:
    team = crew()
    team.model.gate.clear()
    team.queue.put([make_entry(3)])
    assert team.model.running.acquire(timeout=PATIENCE_S)
    started = time.monotonic()
    team.queue.close()
    team.pool.stop(0.1)
    assert time.monotonic() - started < 1.0


def test_a_batch_that_never_ends_is_a_complaint(make_entry: Any) -> None:
    now = time.perf_counter()
    state = WorkerState(0, alive=True, thread=threading.current_thread())
    assert state.complaint(now) is None
    state.batch = FormedBatch("m", [make_entry(3)], now - STALL_S + 1)
    assert state.complaint(now) is None
    state.batch = FormedBatch("m", [make_entry(3)], now - STALL_S - 1)
    assert "running one batch" in str(state.complaint(now))


def test_batches_and_their_failures_are_counted(crew: Any, make_entry: Any) -> None:
    team = crew()
    good = make_entry(4)
    team.queue.put([good])
    team.outcome(good)
    team.wait_until(lambda: team.pool.states[0].batch is None)
    text = team.metrics.render().decode()
    assert 'padserve_batch_tokens_sum{model="m"} 4.0' in text
    assert 'padserve_batch_size_count{model="m"} 1.0' in text
    assert 'padserve_queue_seconds_count{model="m"} 1.0' in text
