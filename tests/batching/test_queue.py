"""The queue between the loop and the workers: closing, draining, waking, preparing ahead, and its accounts."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from padserve.batching.entry import Entry, FormedBatch
from padserve.batching.queue import BatchQueue
from padserve.errors import Draining
from padserve.telemetry.metrics import Metrics

PATIENCE_S = 5.0


@pytest.fixture
def dropped() -> list[Entry]:
    return []


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(["m", "n"], [])


@pytest.fixture
def queue(dropped: list[Entry], metrics: Metrics, make_lane: Any) -> Iterator[BatchQueue]:
    queue = BatchQueue(metrics, dropped.extend)
    for model in ("m", "n"):
        queue.add_lane(make_lane(model))
    yield queue
    queue.close()


@pytest.fixture
def take(queue: BatchQueue) -> Iterator[Callable[[], "Future[FormedBatch | None]"]]:
    """Take in another thread, as a worker does."""
    with ThreadPoolExecutor(4) as pool:
        yield lambda: pool.submit(queue.take)
        queue.close()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def sizes(batch: FormedBatch | None) -> list[int]:
    assert batch is not None
    return [entry.tokens for entry in batch.entries]


def test_what_is_put_is_taken_and_the_account_returns_to_zero(
    queue: BatchQueue, metrics: Metrics, make_entry: Any
) -> None:
    queue.put([make_entry(5), make_entry(7)])
    assert (queue.waiting_tokens, queue.depth("m"), queue.depth("n")) == (12, (2, 12), (0, 0))
    assert b'padserve_queue_tokens{model="m"} 12.0' in metrics.render()
    assert sizes(queue.take()) == [5, 7]
    assert (queue.waiting_tokens, queue.depth("m")) == (0, (0, 0))
    assert b'padserve_queue_tokens{model="m"} 0.0' in metrics.render()


def test_a_waiting_worker_wakes_for_a_put(queue: BatchQueue, take: Any, make_entry: Any) -> None:
    taken = take()
    wait_until(lambda: queue._idle == 1)
    queue.put([make_entry(5)])
    assert sizes(taken.result(PATIENCE_S)) == [5]


def test_idle_workers_share_what_one_put_brings(queue: BatchQueue, take: Any, make_entry: Any) -> None:
    both = take(), take()
    wait_until(lambda: queue._idle == 2)
    queue.put([make_entry(4) for _ in range(6)])
    assert [len(sizes(taken.result(PATIENCE_S))) for taken in both] == [3, 3]


def test_what_a_timer_leaves_over_wakes_the_other_worker(
    dropped: Any, metrics: Metrics, make_lane: Any, make_entry: Any
) -> None:
    """With ``max_wait_s`` one worker takes its share when the time is up; the rest does not wait for it to return."""
    queue = BatchQueue(metrics, dropped.extend)
    queue.add_lane(make_lane("m", max_wait_s=0.1))
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(queue.take) for _ in range(2)]
        wait_until(lambda: queue._idle == 2)
        now = time.perf_counter()
        queue.put([make_entry(4, now)])
        queue.put([make_entry(4, now)])
        assert [sizes(taken.result(PATIENCE_S)) for taken in both] == [[4], [4]]


def test_close_lets_workers_finish_what_waits(queue: BatchQueue, make_entry: Any) -> None:
    queue.put([make_entry(60), make_entry(60)])
    queue.close()
    assert [sizes(queue.take()), sizes(queue.take()), queue.take()] == [[60], [60], None]


def test_close_wakes_every_waiting_worker(queue: BatchQueue, take: Any) -> None:
    waiting = [take() for _ in range(3)]
    wait_until(lambda: queue._idle == 3)
    queue.close()
    assert [taken.result(PATIENCE_S) for taken in waiting] == [None] * 3


def test_nothing_is_accepted_after_close(queue: BatchQueue, make_entry: Any) -> None:
    """An entry that no worker will take must not be left to wait for ever."""
    queue.close()
    with pytest.raises(Draining):
        queue.put([make_entry(5)])
    assert queue.waiting_tokens == 0


def test_drain_takes_everything_out(queue: BatchQueue, make_entry: Any) -> None:
    entries = [make_entry(5), make_entry(7, model="n"), make_entry(100)]
    for entry in entries:
        queue.put([entry])
    assert sorted(map(id, queue.drain())) == sorted(map(id, entries))
    assert queue.waiting_tokens == 0
    queue.close()
    assert queue.take() is None


def test_discarded_and_abandoned_entries_do_not_run(queue: BatchQueue, dropped: list[Entry], make_entry: Any) -> None:
    kept, discarded, abandoned = make_entry(5), make_entry(6), make_entry(7)
    queue.put([discarded, kept, abandoned])
    queue.discard([discarded])
    assert queue.waiting_tokens == 12
    abandoned.ticket.abandon()
    assert sizes(queue.take()) == [5]
    queue.close()
    assert queue.take() is None
    assert dropped == [abandoned]
    assert queue.waiting_tokens == 0


def test_expired_entries_are_handed_back(queue: BatchQueue, dropped: list[Entry], make_entry: Any) -> None:
    late = make_entry(5, deadline=time.perf_counter() - 1)
    queue.put([late, make_entry(6)])
    assert sizes(queue.take()) == [6]
    assert dropped == [late]


def test_seconds_to_clear_come_from_what_was_measured(queue: BatchQueue, make_entry: Any) -> None:
    queue.put([make_entry(10)])
    batch = queue.take()
    assert batch is not None
    queue.ran(batch, 0.5)
    queue.put([make_entry(30)])
    assert queue.seconds_to_clear() == pytest.approx(1.5)


@pytest.fixture
def prepared(queue: BatchQueue, make_entry: Any) -> Iterator[list[Entry]]:
    """Every worker is busy and more than a batch waits; the next one has been made ahead of its worker."""
    thread = threading.Thread(target=queue.prepare_ahead, daemon=True)
    thread.start()
    entries = [make_entry(30) for _ in range(4)]
    queue.put(entries)
    wait_until(lambda: queue._prepared is not None)
    yield entries
    queue.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_full_batch_is_packed_ahead(queue: BatchQueue, prepared: list[Entry]) -> None:
    batch = queue.take()
    assert batch is not None
    assert batch.entries == prepared[:2]
    assert batch.packed is not None
    assert batch.packed.input_ids.tolist() == [30] * 60
    assert queue.waiting_tokens == 60
    assert queue.take() is not None


def test_a_prepared_batch_sheds_what_is_no_longer_wanted(
    queue: BatchQueue, prepared: list[Entry], dropped: list[Entry]
) -> None:
    prepared[0].ticket.abandon()
    queue.discard([prepared[0]])
    assert queue.waiting_tokens == 90
    batch = queue.take()
    assert batch is not None
    assert prepared[0] not in batch.entries
    assert prepared[1] in batch.entries
    assert batch.packed is None or batch.packed.total_tokens == batch.total_tokens


def test_drain_includes_the_prepared_batch(queue: BatchQueue, prepared: list[Entry]) -> None:
    assert sorted(map(id, queue.drain())) == sorted(map(id, prepared))


def test_prepared_batches_count_as_waiting(queue: BatchQueue, prepared: list[Entry]) -> None:
    """Admission looks at what waits; what is packed but not taken still waits."""
    assert queue.waiting_tokens == 120


def test_close_hands_out_the_prepared_batch(queue: BatchQueue, prepared: list[Entry]) -> None:
    queue.close()
    ran = []
    while (batch := queue.take()) is not None:
        ran += batch.entries
    assert sorted(map(id, ran)) == sorted(map(id, prepared))
