"""Cached attention of a step against dense attention of each token alone over what it may see."""

import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from padserve.attention.cached import KVStore, Span, StepAttention

HEADS, KV_HEADS, SIZE, SLOTS, SCALE = 4, 2, 8, 400, 0.3
TABLE = torch.randn(100, HEADS, generator=torch.Generator().manual_seed(1))


@dataclass(frozen=True)
class Sequence:
    """``parents``: of the new tokens, None for a chain."""

    cached: int
    new: int
    parents: tuple[int, ...] | None = None

    def path(self, place: int) -> list[int]:
        """New tokens that a new one comes after, itself last."""
        if self.parents is None:
            return list(range(place + 1))
        found = [place]
        while self.parents[found[0]] >= 0:
            found.insert(0, self.parents[found[0]])
        return found


def tree(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(-1, place) if place else -1 for place in range(count))


def by_distance(queries: Tensor, keys: Tensor) -> Tensor:
    return TABLE[(queries[:, :, None] - keys[:, None]).clamp(0, len(TABLE) - 1)].permute(0, 3, 1, 2)


def dense(query: Tensor, key: Tensor, value: Tensor, window: int | None, biased: bool) -> Tensor:
    """The last token's ``query`` ``[heads, size]`` over the ``[length, kv_heads, size]`` of its path."""
    distance = torch.arange(len(key)).flip(0)
    if window is not None:
        key, value, distance = key[-window:], value[-window:], distance[-window:]
    k, v = (one.repeat_interleave(HEADS // KV_HEADS, 1).transpose(0, 1) for one in (key, value))
    scores = (query[:, None] * k).sum(-1) * SCALE
    if biased:
        scores = scores + TABLE[distance].T
    return (scores.softmax(-1)[:, :, None] * v).sum(1)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("window", [None, 3, 12])
@pytest.mark.parametrize("seed", range(4))
def test_trees_chains_and_single_tokens_in_one_step(seed: int, window: int | None, biased: bool) -> None:
    rng, noise = random.Random(seed), torch.Generator().manual_seed(seed)
    sequences = [Sequence(rng.randrange(40), rng.choice([1, 1, 2, 5, 35])) for _ in range(4)]
    sequences += [Sequence(rng.randrange(40), count, tree(rng, count)) for count in (1, 6, 9, 34)]
    rng.shuffle(sequences)
    store, free = KVStore(1, SLOTS, 1), rng.sample(range(1, SLOTS), SLOTS - 1)
    spans, wants, queries, keys, values = [], [], [], [], []
    start = 0
    for one in sequences:
        slots = torch.tensor([free.pop() for _ in range(one.cached + one.new)])
        key, value = torch.randn(2, one.cached + one.new, KV_HEADS, SIZE, generator=noise)
        query = torch.randn(one.new, HEADS, SIZE, generator=noise)
        if one.cached:
            store.write(0, slots[: one.cached], key[: one.cached], value[: one.cached])
        for place in range(one.new):
            seen = [*range(one.cached), *(one.cached + step for step in one.path(place))]
            wants.append(dense(query[place], key[seen], value[seen], window, biased))
        spans.append(Span(start, one.new, one.cached, slots.tolist(), 1, one.parents))
        assert spans[-1].positions == [one.cached + len(one.path(place)) - 1 for place in range(one.new)]
        start += one.new
        queries.append(query)
        keys.append(key[one.cached :])
        values.append(value[one.cached :])
    attention = StepAttention(store, spans)
    given = torch.cat(queries), torch.cat(keys), torch.cat(values)
    got = attention.attend(0, *given, SCALE, window, by_distance if biased else None)
    torch.testing.assert_close(got, torch.stack(wants), atol=1e-5, rtol=1e-5)


def test_a_chain_told_by_its_parents_is_a_chain() -> None:
    noise = torch.Generator().manual_seed(0)
    key, value = torch.randn(2, 9, KV_HEADS, SIZE, generator=noise)
    query = torch.randn(5, HEADS, SIZE, generator=noise)
    outputs = []
    for parents in (None, (-1, 0, 1, 2, 3)):
        store, slots = KVStore(1, 20, 1), torch.arange(1, 10)
        store.write(0, slots[:4], key[:4], value[:4])
        attention = StepAttention(store, [Span(0, 5, 4, slots.tolist(), 1, parents)])
        outputs.append(attention.attend(0, query, key[4:], value[4:], SCALE, window=3))
    assert torch.equal(*outputs)


def test_masks_are_made_once_for_layers_that_are_alike() -> None:
    calls = []

    def counted(queries: Tensor, keys: Tensor) -> Tensor:
        calls.append(keys.shape)
        return by_distance(queries, keys)

    store = KVStore(3, 20, 1)
    attention = StepAttention(store, [Span(0, 2, 0, list(range(1, 3)), 1)])
    key = torch.randn(2, KV_HEADS, SIZE)
    for layer in range(3):
        attention.attend(layer, torch.randn(2, HEADS, SIZE), key, key, SCALE, bias=counted)
    assert len(calls) == 1
