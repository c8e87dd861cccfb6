"""Disentangled attention of DeBERTa-v2 and v3 (He et al. 2021) within each sequence of a packed stream.

    score(i, j) = (q_i . k_j + q_i . pos_key[r(i - j)] + k_j . pos_query[r(i - j)]) * scale

where r is the log bucket of a distance. The stock module multiplies every query with all 2 * span position rows and
gathers ``[length, length]`` of them. Here the rows of a sequence's own 2 * length - 1 distances are laid out in order,
so that the two products become ``[length, length]`` by strides alone: an element stands at a fixed step from its
neighbours. Position rows depend on weights only and are projected once.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor

from padserve.attention.packed import cumulative
from padserve_kernels.disentangled_attention import disentangled_attention


class DisentangledAttention:
    """``pos_key``, ``pos_query``: projected position rows ``[num_heads, 2 * span, head_dim]``; None where a checkpoint
    leaves that term out. ``buckets``: log buckets, 0 for none; ``max_distance``: where they end."""

    def __init__(
        self, pos_key: Tensor | None, pos_query: Tensor | None, scale: float, span: int, buckets: int, max_distance: int
    ) -> None:
        self.pos_key = pos_key
        self.pos_query = None if pos_query is None else pos_query * scale
        self.scale, self.span, self.buckets, self.max_distance = scale, span, buckets, max_distance

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, lengths: tuple[int, ...]) -> Tensor:
        """``query, key, value``: ``[1, num_heads, total_tokens, head_dim]``; returns ``[1, total_tokens, num_heads,
        head_dim]``."""
        if query.is_cuda:
            return self.by_kernel(query, key, value, lengths)
        sizes = list(lengths)
        scaled = query[0] * self.scale
        parts = zip(
            torch.split(scaled, sizes, 1), torch.split(key[0], sizes, 1), torch.split(value[0], sizes, 1), strict=True
        )
        outputs = [self._attend(q, k, v).transpose(0, 1) for q, k, v in parts]
        return torch.cat(outputs, 0)[None]

    def by_kernel(self, query: Tensor, key: Tensor, value: Tensor, lengths: tuple[int, ...]) -> Tensor:
        """The same by `padserve_kernels.disentangled_attention`: one launch for all sequences."""
        q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        pos_key = None if self.pos_key is None else self.pos_key.transpose(0, 1)
        pos_query = None if self.pos_query is None else self.pos_query.transpose(0, 1) / self.scale  # scaled there
        ends, buckets = cumulative(lengths, query.device), max(self.buckets, 0)
        output = disentangled_attention(
            q, k, v, pos_key, pos_query, ends, buckets, self.max_distance, self.span, scale=self.scale
        )
        return output[None]

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """One sequence, ``[num_heads, length, head_dim]``."""
        heads, length, _ = query.shape
        rows = position_rows(length, self.span, self.buckets, self.max_distance).to(query.device)
        shape, step = (heads, length, length), 2 * length - 2
        scores = query @ key.transpose(1, 2)
        if self.pos_key is not None:
            by_distance = query @ self.pos_key[:, rows.flip(0)].transpose(1, 2)  # [num_heads, length, 2 * length - 1]
            scores += by_distance.as_strided(shape, (length * (step + 1), step, 1), length - 1)
        if self.pos_query is not None:
            by_distance = key @ self.pos_query[:, rows].transpose(1, 2)
            scores += by_distance.as_strided(shape, (length * (step + 1), 1, step), length - 1)
        return scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value


@lru_cache(maxsize=1024)
def position_rows(length: int, span: int, buckets: int, max_distance: int) -> Tensor:
    """Row of the position table for each distance i - j from -(length - 1) to length - 1, ``[2 * length - 1]``."""
    distance = torch.arange(-(length - 1), length)
    if buckets > 0 and max_distance > 0:
        distance = log_bucket(distance, buckets, max_distance)
    return (distance + span).clamp(0, 2 * span - 1)


def log_bucket(distance: Tensor, buckets: int, max_distance: int) -> Tensor:
    """Distances below half the buckets stay; farther ones share buckets that widen by the logarithm. Keeps the sign."""
    middle = buckets // 2
    far = torch.clamp(distance.abs(), min=middle - 1).float()
    widening = torch.log(far / middle) / torch.log(torch.tensor((max_distance - 1) / middle)) * (middle - 1)
    bucket = torch.ceil(widening) + middle
    near = distance.abs() <= middle
    return torch.where(near, distance, (bucket * distance.sign()).long())


def score_scale(head_dim: int, terms: int) -> float:
    """``terms``: content, and each position term that the checkpoint has."""
    return 1.0 / math.sqrt(head_dim * terms)
