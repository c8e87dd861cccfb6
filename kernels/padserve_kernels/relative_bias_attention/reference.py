"""The definition of attention with a relative position bias: test oracle, and what runs where no kernel does."""

import math

import torch
from torch import Tensor


def relative_bias_attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    bias_table: Tensor,
    scale: float,
    causal: bool = False,
    max_distance: int = 128,
) -> Tensor:
    """See `padserve_kernels.relative_bias_attention.relative_bias_attention`. All in float32."""
    output = torch.zeros_like(query)
    for start, stop in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        q = query[start:stop].float().transpose(0, 1)  # [num_heads, length, head_dim]
        k = key[start:stop].float().transpose(0, 1)
        v = value[start:stop].float().transpose(0, 1)
        position = torch.arange(stop - start)
        relative = position[None, :] - position[:, None]
        bucket = relative_bucket(relative, len(bias_table), causal, max_distance).to(query.device)
        scores = q @ k.transpose(1, 2) * scale + bias_table.float()[bucket].permute(2, 0, 1)
        if causal:
            scores = scores.masked_fill((relative > 0).to(query.device), float("-inf"))
        output[start:stop] = (scores.softmax(-1) @ v).transpose(0, 1).to(query.dtype)
    return output


def relative_bucket(relative: Tensor, num_buckets: int, causal: bool, max_distance: int) -> Tensor:
    """Bucket of each relative position j - i of a key to its query, int64; if causal, of those not above 0."""
    if causal:
        return distance_bucket((-relative).clamp(min=0), num_buckets, max_distance)
    half = num_buckets // 2
    return distance_bucket(relative.abs(), half, max_distance) + (relative > 0) * half


def distance_bucket(distance: Tensor, num_buckets: int, max_distance: int) -> Tensor:
    """Bucket, of ``num_buckets`` for one direction, of each distance >= 0.

    The roundings are those of transformers' ``T5Attention._relative_position_bucket`` on a CPU: at a border the last
    bit of the logarithm decides.
    """
    exact = num_buckets // 2
    far = distance.clamp(min=exact).float()
    widening = torch.log(far / exact) / math.log(max_distance / exact) * (num_buckets - exact)
    bucket = (exact + widening.long()).clamp(max=num_buckets - 1)
    return torch.where(distance < exact, distance, bucket)
