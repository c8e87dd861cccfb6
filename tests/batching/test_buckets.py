"""Learned edges against brute force, and the waste that they leave."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padserve.batching.buckets import DEFAULT_EDGES, LengthBuckets, learn_edges


def padded_tokens(lengths: Sequence[int], edges: Sequence[int]) -> int:
    """Tokens that run when every length is padded to the edge of its bucket."""
    return sum(edges[bisect_left(edges, length)] for length in lengths)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=60), st.integers(1, 4))
def test_learned_edges_are_the_best_there_are(lengths: list[int], count: int) -> None:
    edges = learn_edges(lengths, count)
    assert list(edges) == sorted(set(edges))
    assert len(edges) <= count
    assert edges[-1] == max(lengths)
    distinct = sorted(set(lengths))[:-1]
    if len(distinct) > 12:
        distinct = distinct[:: len(distinct) // 6]
    best = min(
        padded_tokens(lengths, (*chosen, max(lengths)))
        for size in range(min(count, len(distinct) + 1))
        for chosen in combinations(distinct, size)
    )
    assert padded_tokens(lengths, edges) <= best


def lognormal_lengths(count: int, seed: int) -> list[int]:
    drawn = np.random.default_rng(seed).lognormal(np.log(27), 0.9, count)
    return [int(length) + 2 for length in np.clip(drawn, 1, 180)]


@pytest.mark.parametrize("seed", range(3))
def test_learned_edges_waste_little_on_lengths_not_seen_before(seed: int) -> None:
    buckets = LengthBuckets(None, 512)
    for length in lognormal_lengths(2048, seed):
        buckets.observe(length)
    assert buckets.edges != DEFAULT_EDGES
    fresh = lognormal_lengths(4000, seed + 100)
    padded = sum(buckets.edges[buckets.index(length)] for length in fresh)
    default = padded_tokens(fresh, DEFAULT_EDGES)
    assert 1 - sum(fresh) / padded < 0.10
    assert padded < default


@given(st.lists(st.integers(1, 700), max_size=6), st.integers(1, 600), st.integers(1, 900))
def test_every_length_has_the_first_bucket_that_holds_it(edges: list[int], longest: int, length: int) -> None:
    buckets = LengthBuckets(edges, longest)
    index = buckets.index(length)
    assert buckets.edges[-1] == longest
    assert list(buckets.edges) == sorted(set(buckets.edges))
    if length <= longest:
        assert length <= buckets.edges[index]
        assert index == 0 or buckets.edges[index - 1] < length
    else:
        assert index == len(buckets.edges) - 1


def test_given_edges_are_kept_whatever_comes() -> None:
    buckets = LengthBuckets((10, 20), 50, relearn_every=4)
    assert not any(buckets.observe(7) for _ in range(20))
    assert buckets.edges == (10, 20, 50)


def test_edges_follow_a_change_of_traffic() -> None:
    buckets = LengthBuckets(None, 512, window=64, relearn_every=32)
    changed = [buckets.observe(9) for _ in range(64)]
    assert changed.count(True) == 1
    assert buckets.edges == (9, 512)
    for _ in range(64):
        buckets.observe(200)
    assert buckets.edges == (200, 512)
