"""The definition of varlen attention: test oracle, and what runs where no kernel does."""

import torch
from torch import Tensor


def varlen_attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    scale: float,
    causal: bool = False,
    window: int | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """See `padserve_kernels.varlen_attention.varlen_attention`. Every product and the softmax in float32."""
    group = query.shape[1] // key.shape[1]
    output = torch.zeros_like(query)
    for start, stop in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        q = query[start:stop].float().transpose(0, 1)  # [num_heads, length, head_dim]
        k = key[start:stop].float().transpose(0, 1).repeat_interleave(group, 0)
        v = value[start:stop].float().transpose(0, 1).repeat_interleave(group, 0)
        scores = q @ k.transpose(1, 2) * scale
        if bias is not None:
            scores = scores + bias[:, : stop - start, : stop - start].float()
        seen = visible(stop - start, causal, window, query.device)
        scores = scores.masked_fill(~seen, float("-inf"))
        weights = torch.nan_to_num(scores.softmax(-1), nan=0.0)
        output[start:stop] = (weights @ v).transpose(0, 1).to(query.dtype)
    return output


def visible(length: int, causal: bool, window: int | None, device: torch.device) -> Tensor:
    """``[length, length]``, True where a query (row) sees a key (column)."""
    distance = torch.arange(length, device=device)[:, None] - torch.arange(length, device=device)[None, :]
    seen = torch.ones_like(distance, dtype=torch.bool)
    if causal:
        seen &= distance >= 0
    if window is not None:
        seen &= distance.abs() <= window
    return seen
