"""The kernel: online softmax as in varlen attention, with the bias looked up by distance.

Each pair of a tile looks up its bucket in ``buckets``, an int32 table by distance made once on the CPU (a logarithm of
the GPU's own may round to the other side of a bucket's border), then its bias in the bias table. Both are small enough
to stay in the first-level cache; no tensor of pairs is made.
"""

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from padserve_kernels.dispatch import interpreting
from padserve_kernels.relative_bias_attention.reference import distance_bucket
from padserve_kernels.varlen_attention.triton import LOG2E, query_blocks


@triton.jit
def _relative_bias_attention_kernel(
    query,
    key,
    value,
    bias_table,
    output,
    cu_seqlens,
    block_seq,
    block_start,
    buckets,
    scale_log2,
    stride_q_token,
    stride_q_head,
    stride_k_token,
    stride_k_head,
    stride_v_token,
    stride_v_head,
    stride_b_bucket,
    stride_b_head,
    stride_o_token,
    stride_o_head,
    half,
    farthest,
    head_dim: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
    UPCAST: tl.constexpr,
):
    block = tl.program_id(0)
    head = tl.program_id(1)
    seq = tl.load(block_seq + block)
    first = tl.load(block_start + block)
    start = tl.load(cu_seqlens + seq).to(tl.int64)
    length = (tl.load(cu_seqlens + seq + 1) - start).to(tl.int32)

    rows = first + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    row_ok = rows < length
    dim_ok = dims < head_dim
    q_at = query + (start + rows)[:, None] * stride_q_token + head * stride_q_head + dims[None, :]
    q = tl.load(q_at, mask=row_ok[:, None] & dim_ok[None, :], other=0.0)
    if UPCAST:
        q = q.to(tl.float32)

    high = length
    if CAUSAL:
        high = tl.minimum(high, first + BLOCK_M)

    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for at in range(0, high, BLOCK_N):
        columns = at + tl.arange(0, BLOCK_N)
        column_ok = columns < length
        k_at = key + (start + columns)[None, :] * stride_k_token + head * stride_k_head + dims[:, None]
        k = tl.load(k_at, mask=column_ok[None, :] & dim_ok[:, None], other=0.0)
        if UPCAST:
            k = k.to(tl.float32)
        scores = tl.dot(q, k, input_precision="ieee") * scale_log2
        relative = columns[None, :] - rows[:, None]
        seen = column_ok[None, :] & row_ok[:, None]
        if CAUSAL:
            seen = seen & (relative <= 0)
        bucket = tl.load(buckets + tl.minimum(tl.abs(relative), farthest))
        bucket += tl.where(relative > 0, half, 0)
        b_at = bias_table + bucket * stride_b_bucket + head * stride_b_head
        scores += tl.load(b_at, mask=seen, other=0.0).to(tl.float32) * 1.4426950408889634
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - base[:, None])
        decay = tl.exp2(peak - base)
        total = total * decay + tl.sum(weights, 1)
        v_at = value + (start + columns)[:, None] * stride_v_token + head * stride_v_head + dims[None, :]
        v = tl.load(v_at, mask=column_ok[:, None] & dim_ok[None, :], other=0.0)
        if UPCAST:
            v = v.to(tl.float32)
        acc = acc * decay[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        peak = higher
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    o_at = output + (start + rows)[:, None] * stride_o_token + head * stride_o_head + dims[None, :]
    tl.store(o_at, acc.to(output.dtype.element_ty), mask=row_ok[:, None] & dim_ok[None, :])


def relative_bias_attention_triton(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    bias_table: Tensor,
    scale: float,
    causal: bool = False,
    max_distance: int = 128,
) -> Tensor:
    """See `padserve_kernels.relative_bias_attention.relative_bias_attention`."""
    output = torch.zeros_like(query)
    block_m, block_n = _blocks(query)
    block_seq, block_start = query_blocks(cu_seqlens, block_m)
    if len(block_seq) == 0:
        return output
    head_dim = query.shape[-1]
    half = 0 if causal else len(bias_table) // 2
    grid = (len(block_seq), query.shape[1])
    options: dict[str, Any] = {
        "head_dim": head_dim,
        "BLOCK_D": max(triton.next_power_of_2(head_dim), 16),
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "CAUSAL": causal,
        "UPCAST": interpreting(),
    }
    _relative_bias_attention_kernel[grid](
        query,
        key,
        value,
        bias_table,
        output,
        cu_seqlens,
        block_seq,
        block_start,
        bucket_by_distance(half or len(bias_table), max_distance, query.device),
        scale * LOG2E,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        bias_table.stride(0),
        bias_table.stride(1),
        output.stride(0),
        output.stride(1),
        half,
        max_distance,
        **options,
    )
    return output


def _blocks(query: Tensor) -> tuple[int, int]:
    """Rows and columns of a tile: smaller where a head is wide, so that it fits into shared memory."""
    wide = query.shape[-1] > 128 or query.dtype == torch.float32
    return (32, 32) if wide else (64, 64)


@lru_cache(maxsize=64)
def bucket_by_distance(num_buckets: int, max_distance: int, device: torch.device) -> Tensor:
    """Bucket, of ``num_buckets`` for one direction, of each distance from 0 to max_distance, int32; farther ones have
    the last one's."""
    return distance_bucket(torch.arange(max_distance + 1), num_buckets, max_distance).to(device, torch.int32)
