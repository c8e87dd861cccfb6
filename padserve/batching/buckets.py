"""Length buckets: sequences of like length wait together, so that a padded batch wastes little.

Edges are given, or learned: those that minimise the padding of the lengths seen lately.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

import numpy as np

LEARNED_EDGES = 16
DEFAULT_EDGES = (16, 32, 64, 128, 256, 512)


class LengthBuckets:
    """Bucket i holds lengths up to ``edges[i]``; the last one holds everything longer too."""

    def __init__(
        self, edges: Sequence[int] | None, max_length: int, window: int = 2048, relearn_every: int = 512
    ) -> None:
        self._learning = edges is None
        self._max_length = max_length
        self._seen: deque[int] = deque(maxlen=window)
        self._relearn_every = relearn_every
        self._until_relearn = relearn_every
        self.edges = _close(DEFAULT_EDGES if edges is None else edges, max_length)

    def index(self, length: int) -> int:
        return min(bisect_left(self.edges, length), len(self.edges) - 1)

    def observe(self, length: int) -> bool:
        """Note a length; True when the edges have changed."""
        if not self._learning:
            return False
        self._seen.append(length)
        self._until_relearn -= 1
        if self._until_relearn > 0:
            return False
        self._until_relearn = self._relearn_every
        before = self.edges
        self.edges = _close(learn_edges(self._seen, count=LEARNED_EDGES), self._max_length)
        return self.edges != before


def _close(edges: Sequence[int], max_length: int) -> tuple[int, ...]:
    """Edges in order, the last one being the longest length there can be."""
    return (*sorted({edge for edge in edges if 0 < edge < max_length}), max_length)


def learn_edges(lengths: Sequence[int], count: int, resolution: int = 64) -> tuple[int, ...]:
    """At most ``count`` edges with the least total padding, by dynamic programming over ``resolution`` quantiles."""
    ordered = sorted(lengths)
    if not ordered:
        return DEFAULT_EDGES
    ranks = [round((i + 1) * len(ordered) / resolution) - 1 for i in range(resolution)]
    values = sorted({ordered[max(rank, 0)] for rank in ranks} | {ordered[-1]})
    below = [0, *(bisect_right_count(ordered, value) for value in values)]
    return _least_padding(values, below, min(count, len(values)))


def bisect_right_count(ordered: Sequence[int], value: int) -> int:
    """How many of the ordered lengths are at most ``value``."""
    return bisect_left(ordered, value + 1)


def _least_padding(values: list[int], below: list[int], count: int) -> tuple[int, ...]:
    """``below[i]``: lengths at most ``values[i - 1]``. A bucket costs its edge times its members."""
    size = len(values)
    members = np.subtract.outer(below[1:], below[:-1])  # [end, start]
    bucket = np.where(members > 0, np.multiply(np.array(values)[:, None], members), np.inf)
    cost = np.concatenate([[0.0], np.full(size, np.inf)])
    choice = []
    for _ in range(count):
        total = bucket + cost[:-1]
        choice.append(total.argmin(1))
        cost = np.concatenate([[0.0], total.min(1)])
    edges, end = [], size
    for starts in reversed(choice):
        if end == 0:
            break
        edges.append(values[end - 1])
        end = int(starts[end - 1])
    return tuple(sorted(edges))
