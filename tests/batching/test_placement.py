"""Workers and threads: what is set stands, what is measured fits the CPUs."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from padserve.batching import placement
from padserve.config.structs import ServerConfig


@pytest.fixture
def cpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``cpus(count, {(workers, threads): rate})``: a machine."""

    def pretend(count: float, rates: dict[tuple[int, int], float] | None = None) -> list[tuple[int, int]]:
        measured: list[tuple[int, int]] = []

        def rate(workers: int, threads: int) -> float:
            measured.append((workers, threads))
            return (rates or {}).get((workers, threads), 1.0)

        monkeypatch.setattr(placement, "available_cpus", lambda: SimpleNamespace(count=count, source="cgroup"))
        monkeypatch.setattr(placement, "measure_rate", rate)
        return measured

    return pretend


@pytest.mark.parametrize(
    ("workers", "threads", "count", "expected"),
    [
        (3, 5, 2, (3, 5)),
        (2, 0, 8, (2, 4)),
        (3, 0, 2, (3, 1)),
        (0, 2, 8, (4, 2)),
        (0, 16, 8, (1, 16)),
        (0, 0, 1, (1, 1)),
    ],
)
def test_what_is_configured_stands(
    workers: int, threads: int, count: int, expected: tuple[int, int], cpus: Any
) -> None:
    measured = cpus(count)
    plan = placement.plan_placement(ServerConfig(workers=workers, threads=threads))
    assert (plan.workers, plan.threads) == expected
    assert plan.cpus == count
    assert measured == []


@pytest.mark.parametrize("count", [0.5, 1.5])
def test_a_part_of_a_cpu_is_one_worker(count: float, cpus: Any) -> None:
    cpus(count)
    plan = placement.plan_placement(ServerConfig())
    assert (plan.workers, plan.threads) == (1, 1)


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ({(2, 1): 100, (1, 2): 110}, (2, 1)),
        ({(2, 1): 67, (1, 2): 110}, (2, 1)),
        ({(2, 1): 65, (1, 2): 110}, (1, 2)),
        ({(2, 1): 110, (1, 2): 50}, (2, 1)),
    ],
)
def test_more_workers_win_unless_they_are_far_slower(
    rates: dict[tuple[int, int], float], expected: tuple[int, int], cpus: Any
) -> None:
    measured = cpus(2.0, rates)
    plan = placement.plan_placement(ServerConfig())
    assert (plan.workers, plan.threads) == expected
    assert sorted(measured) == [(1, 2)] * 3 + [(2, 1)] * 3, "each split is measured three times"
    assert measured[:2] == [(2, 1), (1, 2)], "in turn"
    assert "cgroup" in plan.why


@pytest.mark.parametrize("count", [3, 6, 7, 12, 64])
def test_every_split_uses_all_cores(count: int, cpus: Any) -> None:
    measured = cpus(float(count))
    placement.plan_placement(ServerConfig())
    assert all(workers * threads == count for workers, threads in measured)
    assert {(count, 1), (1, count)} <= set(measured)


def test_the_measurement_ends_and_gives_a_rate() -> None:
    before = threading.active_count()
    assert placement.measure_rate(2, 1, seconds=0.3) > 0
    assert threading.active_count() <= before


def test_threads_are_each_worker_s_own() -> None:
    before = torch.get_num_threads()
    seen = []

    def work() -> None:
        placement.set_threads(1 if before > 1 else 2)
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [1 if before > 1 else 2]
    assert torch.get_num_threads() == before
