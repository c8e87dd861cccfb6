"""One model's line: what rides in the next batch, in what order, and what never does."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padserve.batching.lane import BULK_HANDICAP_S, due

NOW = 1000.0
STATES = st.sampled_from(["live", "live", "live", "abandoned", "expired"])
WAITING = st.lists(st.tuples(st.integers(1, 100), STATES, st.booleans(), st.floats(0, 3)), min_size=1, max_size=40)


def fill(lane: Any, make_entry: Any, waiting: list[tuple[int, str, bool, float]]) -> list[Any]:
    arrivals = itertools.accumulate(gap for *_, gap in waiting)
    entries = []
    for (length, state, bulk, _), arrived in zip(waiting, arrivals, strict=True):
        entry = make_entry(length, arrived, bulk=bulk, deadline=NOW - 1 if state == "expired" else NOW + 1)
        entry.ticket.abandoned = state == "abandoned"
        lane.add(entry)
        entries.append(entry)
    return entries


def is_live(entry: Any) -> bool:
    return not entry.ticket.abandoned and not entry.expired(NOW)


@settings(max_examples=150, deadline=None)
@given(waiting=WAITING, budget=st.integers(1, 200), padded=st.booleans())
def test_every_entry_leaves_exactly_once_and_the_dead_never_run(
    waiting: list[tuple[int, str, bool, float]], budget: int, padded: bool, make_lane: Any, make_entry: Any
) -> None:
    lane = make_lane(padded=padded)
    entries = fill(lane, make_entry, waiting)
    ran: list[Any] = []
    dropped: list[Any] = []
    while lane.oldest_arrival() is not None:
        waits = [entry for entry in entries if entry not in ran and entry not in dropped and is_live(entry)]
        dropped += lane.drop_dead(NOW)
        chosen, dead = lane.pop_batch(budget, NOW)
        dropped += dead
        ran += chosen
        assert chosen or not waits
        if chosen:
            oldest = min(waits, key=due)
            assert due(chosen[0]) == due(oldest)
            cost = len(chosen) * max(e.tokens for e in chosen) if padded else sum(e.tokens for e in chosen)
            assert len(chosen) == 1 or cost <= budget
            if padded:
                assert len({lane.buckets.index(entry.tokens) for entry in chosen}) == 1
    assert all(is_live(entry) for entry in ran)
    assert not any(is_live(entry) for entry in dropped)
    assert sorted(map(id, ran + dropped)) == sorted(map(id, entries))


def test_an_entry_longer_than_the_budget_rides_alone(make_lane: Any, make_entry: Any) -> None:
    lane = make_lane()
    lane.add(make_entry(100, 0.0))
    lane.add(make_entry(3, 1.0))
    first, _ = lane.pop_batch(64, 2.0)
    second, _ = lane.pop_batch(64, 2.0)
    assert [[entry.tokens for entry in batch] for batch in (first, second)] == [[100], [3]]


def test_a_packed_batch_is_filled_from_its_own_bucket_first(make_lane: Any, make_entry: Any) -> None:
    lane = make_lane()
    for arrived, length in enumerate([7, 30, 6, 12, 8]):
        lane.add(make_entry(length, float(arrived)))
    batch, _ = lane.pop_batch(60, 9.0)
    assert [entry.tokens for entry in batch] == [7, 6, 8, 30]


def test_a_padded_batch_counts_its_padding(make_lane: Any, make_entry: Any) -> None:
    lane = make_lane(padded=True, edges=(32,))
    for arrived, length in enumerate([2, 2, 2, 30, 2]):
        lane.add(make_entry(length, float(arrived)))
    batch, _ = lane.pop_batch(64, 9.0)
    assert [entry.tokens for entry in batch] == [2, 2, 2], "a fourth of 30 tokens would cost 4 x 30"


@pytest.mark.parametrize("padded", [False, True])
def test_bulk_yields_to_interactive_but_only_for_so_long(padded: bool, make_lane: Any, make_entry: Any) -> None:
    lane = make_lane(padded=padded, target_tokens=10, max_batch_tokens=10)
    lane.add(make_entry(5, 0.0, bulk=True))
    served = 0
    for step in range(40):
        now = step * 0.5
        lane.add(make_entry(6, now))
        lane.add(make_entry(6, now))
        batch, _ = lane.pop_batch(10, now)
        served += 1
        if batch[0].priority == "bulk":
            break
    assert batch[0].priority == "bulk", "it starves"
    assert BULK_HANDICAP_S <= now <= 2 * BULK_HANDICAP_S + 1
    assert served > 1


def test_bulk_fills_what_interactive_leaves(make_lane: Any, make_entry: Any) -> None:
    lane = make_lane()
    lane.add(make_entry(5, 0.0, bulk=True))
    lane.add(make_entry(5, 1.0))
    batch, _ = lane.pop_batch(64, 1.0)
    assert [entry.priority for entry in batch] == ["interactive", "bulk"]


def test_remove_takes_out_what_waits_and_nothing_else(make_lane: Any, make_entry: Any) -> None:
    lane = make_lane()
    entries = [make_entry(length, float(length)) for length in (3, 30, 4, 100, 5)]
    for entry in entries:
        lane.add(entry)
    stranger = make_entry(3)
    assert set(map(id, lane.remove([entries[0], entries[3], stranger]))) == {id(entries[0]), id(entries[3])}
    batch, _ = lane.pop_batch(1000, 9.0)
    assert sorted(entry.tokens for entry in batch) == [4, 5, 30]
    assert lane.remove(entries) == []


def test_order_survives_new_edges(make_lane: Any, make_entry: Any) -> None:
    lane = make_lane(edges=None, padded=True)
    lane.buckets._relearn_every = lane.buckets._until_relearn = 10
    entries = [make_entry(length, float(index)) for index, length in enumerate([3, 3, 90, 3, 90, 3, 3, 90, 3, 3])]
    for entry in entries:
        lane.add(entry)
    assert lane.buckets.edges == (3, 90, 128)
    short, _ = lane.pop_batch(10_000, 99.0)
    long, _ = lane.pop_batch(10_000, 99.0)
    assert short == [entry for entry in entries if entry.tokens == 3]
    assert long == [entry for entry in entries if entry.tokens == 90]
