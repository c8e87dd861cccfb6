"""Attention with a bias by relative position (MPNet, T5) within each sequence of a packed stream."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

LONGEST_KEPT = 1024


class BiasedAttention:
    """``bias_of(length)``: ``[num_heads, length, length]``, added to the scores. It depends on the distance of two
    tokens alone, so the bias of a shorter sequence is a corner of a longer one's, and the longest one seen is kept."""

    def __init__(self, bias_of: Callable[[int], Tensor], scale: float) -> None:
        self._bias_of, self._scale = bias_of, scale
        self._kept = bias_of(1)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, lengths: tuple[int, ...]) -> Tensor:
        """``query, key, value``: ``[1, num_heads, total_tokens, head_dim]``; returns ``[1, total_tokens, num_heads,
        head_dim]``."""
        sizes = list(lengths)
        bias = self._bias(max(sizes))
        outputs = []
        parts = (torch.split(tensor, sizes, 2) for tensor in (query, key, value))
        for q, k, v in zip(*parts, strict=True):
            length = q.shape[2]
            mask = bias[None, :, :length, :length].to(q.dtype)
            outputs.append(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self._scale).transpose(1, 2))
        return torch.cat(outputs, 1)

    def _bias(self, length: int) -> Tensor:
        kept = self._kept
        if length <= kept.shape[1]:
            return kept
        bias = self._bias_of(length)
        if length <= LONGEST_KEPT:
            self._kept = bias
        return bias
