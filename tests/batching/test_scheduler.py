"""Which lane goes next: fair by device time, nothing lost, nothing doubled, accounts that return to zero."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padserve.batching.scheduler import Scheduler

ADD = st.tuples(
    st.just("add"), st.sampled_from("ab"), st.lists(st.integers(1, 100), min_size=1, max_size=8), st.booleans()
)
NEXT = st.tuples(st.just("next"), st.integers(1, 3))
OTHER = st.one_of(
    st.tuples(st.just("discard"), st.integers(0, 5)),
    st.tuples(st.just("abandon"), st.integers(0, 5)),
    st.tuples(st.just("pass"), st.floats(0.01, 3)),
)
STEPS = st.lists(st.one_of(ADD, ADD, NEXT, NEXT, OTHER), min_size=8, max_size=40)


def two_lanes(make_lane: Any, **settings: Any) -> Scheduler:
    scheduler = Scheduler()
    for model, padded in (("a", False), ("b", True)):
        scheduler.add_lane(make_lane(model, padded=padded, **settings))
    return scheduler


@settings(max_examples=150, deadline=None)
@given(steps=STEPS)
def test_every_entry_ends_exactly_once(steps: list[Any], make_lane: Any, make_entry: Any) -> None:
    scheduler = two_lanes(make_lane)
    now, added, ended = 0.0, [], []
    for name, *arguments in steps:
        waiting = [entry for entry in added if entry not in ended]
        if name == "add":
            model, lengths, bulk = arguments
            entries = [make_entry(length, now, model, bulk, deadline=now + 4) for length in lengths]
            added += entries
            scheduler.add(entries)
        elif name == "next":
            decision = scheduler.next_batch(now, arguments[0])
            assert all(entry.ticket.abandoned or entry.expired(now) for entry in decision.dropped)
            ended += decision.dropped
            if decision.batch is None:
                assert not [entry for entry in waiting if not entry.ticket.abandoned and not entry.expired(now)]
                continue
            entries = decision.batch.entries
            assert not any(entry.ticket.abandoned or entry.expired(now) for entry in entries)
            assert {entry.model for entry in entries} == {decision.batch.model}
            ended += entries
            scheduler.ran(decision.batch, 0.001 * decision.batch.total_tokens)
        elif name == "pass":
            now += arguments[0]
        elif waiting:
            entry = waiting[arguments[0] % len(waiting)]
            entry.ticket.abandoned = True
            if name == "discard":
                scheduler.discard(entry.model, [entry])
                ended.append(entry)
        left = [entry for entry in added if entry not in ended]
        assert scheduler.waiting_tokens == sum(entry.tokens for entry in left)
        assert sum(scheduler.depth.values()) == len(left)
    ended += scheduler.drain()
    assert sorted(map(id, ended)) == sorted(map(id, added))
    assert scheduler.waiting_tokens == 0


@pytest.mark.parametrize("slowness", [1.0, 5.0, 40.0])
def test_two_busy_lanes_share_device_time_not_batches(slowness: float, make_lane: Any, make_entry: Any) -> None:
    """Whatever a token of each costs, neither gets more than a batch's worth of time ahead."""
    scheduler = two_lanes(make_lane)
    cost = {"a": 0.001, "b": 0.001 * slowness}
    used = {"a": 0.0, "b": 0.0}
    scheduler.add([make_entry(8, 0.0, model) for model in "ab" for _ in range(4000)])
    longest = 0.0
    for step in range(300):
        batch = scheduler.next_batch(float(step)).batch
        assert batch is not None
        run_s = cost[batch.model] * batch.total_tokens
        longest = max(longest, run_s)
        used[batch.model] += run_s
        scheduler.ran(batch, run_s)
        assert abs(used["a"] - used["b"]) <= 2 * longest + 1e-9
    assert min(used.values()) > 0


def test_a_flood_does_not_shut_out_a_lane_with_a_history(make_lane: Any, make_entry: Any) -> None:
    """``a`` has served one client at a time for long and waits for nothing when ``b`` is flooded."""
    scheduler = two_lanes(make_lane)
    for step in range(100):
        scheduler.add([make_entry(8, float(step), "a")])
        batch = scheduler.next_batch(float(step)).batch
        assert batch is not None
        scheduler.ran(batch, 1.0)
    scheduler.add([make_entry(8, 100.0, "b") for _ in range(1000)])
    first = scheduler.next_batch(100.0).batch
    assert first is not None
    scheduler.ran(first, 0.1)
    scheduler.add([make_entry(8, 100.1, "a")])
    models = []
    for _ in range(15):
        batch = scheduler.next_batch(100.2).batch
        assert batch is not None
        models.append(batch.model)
        scheduler.ran(batch, 0.1)
    assert "a" in models, "a waits until b has used as much as a ever did"


def test_an_idle_lane_does_not_catch_up_on_time_it_did_not_want(make_lane: Any, make_entry: Any) -> None:
    scheduler = two_lanes(make_lane)
    scheduler.add([make_entry(8, 0.0, "a") for _ in range(4000)])
    for step in range(100):
        batch = scheduler.next_batch(float(step)).batch
        assert batch is not None
        scheduler.ran(batch, 1.0)
    scheduler.add([make_entry(8, 100.0, "b") for _ in range(4000)])
    models = []
    for step in range(20):
        batch = scheduler.next_batch(100.0 + step).batch
        assert batch is not None
        models.append(batch.model)
        scheduler.ran(batch, 1.0)
    assert 8 <= models.count("a") <= 12


@pytest.mark.parametrize("bulk", [False, True])
def test_max_wait_holds_a_batch_back_for_so_long_and_no_longer(bulk: bool, make_lane: Any, make_entry: Any) -> None:
    scheduler = two_lanes(make_lane, max_wait_s=0.5)
    assert scheduler.next_batch(0.0).wait_s is None
    scheduler.add([make_entry(8, 10.0, "a", bulk)])
    decision = scheduler.next_batch(10.2)
    assert decision.batch is None
    assert decision.wait_s == pytest.approx(0.3)
    assert scheduler.next_batch(10.5).batch is not None


def test_a_full_batch_does_not_wait(make_lane: Any, make_entry: Any) -> None:
    scheduler = two_lanes(make_lane, max_wait_s=0.5)
    scheduler.add([make_entry(32, 10.0, "a") for _ in range(2)])
    batch = scheduler.next_batch(10.0).batch
    assert batch is not None
    assert batch.total_tokens == 64


@pytest.mark.parametrize(("idle", "sizes"), [(1, [4]), (2, [2, 2]), (4, [1, 1, 1, 1])])
def test_idle_workers_share_what_waits(idle: int, sizes: list[int], make_lane: Any, make_entry: Any) -> None:
    scheduler = two_lanes(make_lane)
    scheduler.add([make_entry(8, 0.0, "a") for _ in range(4)])
    batches = []
    for left in range(idle, 0, -1):
        batch = scheduler.next_batch(0.0, left).batch
        assert batch is not None
        batches.append(len(batch.entries))
    assert batches == sizes


def test_the_budget_holds_in_every_batch_but_for_a_lone_entry(make_lane: Any, make_entry: Any) -> None:
    scheduler = two_lanes(make_lane)
    scheduler.add([make_entry(length, 0.0, "a") for length in (60, 100, 5, 60, 3, 128, 1)])
    sizes = []
    while (batch := scheduler.next_batch(1.0).batch) is not None:
        assert batch.total_tokens <= 64 or len(batch.entries) == 1
        sizes += [entry.tokens for entry in batch.entries]
    assert sorted(sizes) == [1, 3, 5, 60, 60, 100, 128]


def test_a_prepared_batch_is_offered_only_when_more_than_one_waits(make_lane: Any, make_entry: Any) -> None:
    scheduler = two_lanes(make_lane)
    scheduler.add([make_entry(64, 0.0, "a")])
    assert not scheduler.full_batch_waits()
    scheduler.add([make_entry(1, 0.0, "a")])
    assert scheduler.full_batch_waits()
