"""The kernel: online softmax (Dao et al. 2022, FlashAttention) over one sequence's keys for a block of its queries.

Under triton's interpreter products run in float32 (``UPCAST``): its dot is wrong for bfloat16.

The program id of axis 0 counts blocks of queries over all sequences; ``block_seq`` and ``block_start`` say which
sequence each belongs to and where in it. So a thousand short sequences make a thousand programs and no empty ones.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from padserve_kernels.dispatch import interpreting

LOG2E = 1.4426950408889634


@triton.jit
def _varlen_attention_kernel(
    query,
    key,
    value,
    bias,
    output,
    cu_seqlens,
    block_seq,
    block_start,
    scale_log2,
    stride_q_token,
    stride_q_head,
    stride_k_token,
    stride_k_head,
    stride_v_token,
    stride_v_head,
    stride_o_token,
    stride_o_head,
    stride_b_head,
    stride_b_row,
    window,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    BIAS: tl.constexpr,
    UPCAST: tl.constexpr,
):
    block = tl.program_id(0)
    head = tl.program_id(1)
    seq = tl.load(block_seq + block)
    first = tl.load(block_start + block)
    start = tl.load(cu_seqlens + seq)
    length = (tl.load(cu_seqlens + seq + 1) - start).to(tl.int32)

    rows = first + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    row_ok = rows < length
    dim_ok = dims < head_dim
    q_at = query + (start + rows)[:, None] * stride_q_token + head * stride_q_head + dims[None, :]
    q = tl.load(q_at, mask=row_ok[:, None] & dim_ok[None, :], other=0.0)
    if UPCAST:
        q = q.to(tl.float32)

    low = 0
    high = length
    if WINDOW:
        low = tl.maximum(first - window, 0) // BLOCK_N * BLOCK_N
        high = tl.minimum(first + BLOCK_M + window, length)
    if CAUSAL:
        high = tl.minimum(high, first + BLOCK_M)

    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    kv_head = head // group
    for at in range(low, high, BLOCK_N):
        columns = at + tl.arange(0, BLOCK_N)
        column_ok = columns < length
        k_at = key + (start + columns)[None, :] * stride_k_token + kv_head * stride_k_head + dims[:, None]
        k = tl.load(k_at, mask=column_ok[None, :] & dim_ok[:, None], other=0.0)
        if UPCAST:
            k = k.to(tl.float32)
        scores = tl.dot(q, k, input_precision="ieee") * scale_log2
        seen = column_ok[None, :] & row_ok[:, None]
        if BIAS:
            b_at = bias + head * stride_b_head + rows[:, None] * stride_b_row + columns[None, :]
            scores += tl.load(b_at, mask=seen, other=0.0).to(tl.float32) * 1.4426950408889634
        if CAUSAL:
            seen = seen & (columns[None, :] <= rows[:, None])
        if WINDOW:
            distance = rows[:, None] - columns[None, :]
            seen = seen & (distance <= window) & (distance >= -window)
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - base[:, None])
        decay = tl.exp2(peak - base)
        total = total * decay + tl.sum(weights, 1)
        v_at = value + (start + columns)[:, None] * stride_v_token + kv_head * stride_v_head + dims[None, :]
        v = tl.load(v_at, mask=column_ok[:, None] & dim_ok[None, :], other=0.0)
        if UPCAST:
            v = v.to(tl.float32)
        acc = acc * decay[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        peak = higher
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    o_at = output + (start + rows)[:, None] * stride_o_token + head * stride_o_head + dims[None, :]
    tl.store(o_at, acc.to(output.dtype.element_ty), mask=row_ok[:, None] & dim_ok[None, :])


def varlen_attention_triton(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    scale: float,
    causal: bool = False,
    window: int | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """See `padserve_kernels.varlen_attention.varlen_attention`."""
    output = torch.zeros_like(query)
    block_m, block_n = _blocks(query)
    block_seq, block_start = query_blocks(cu_seqlens, block_m)
    if len(block_seq) == 0:
        return output
    head_dim = query.shape[-1]
    grid = (len(block_seq), query.shape[1])
    options: dict[str, Any] = {
        "group": query.shape[1] // key.shape[1],
        "head_dim": head_dim,
        "BLOCK_D": max(triton.next_power_of_2(head_dim), 16),
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "CAUSAL": causal,
        "WINDOW": window is not None,
        "BIAS": bias is not None,
        "UPCAST": interpreting(),
    }
    _varlen_attention_kernel[grid](
        query,
        key,
        value,
        query if bias is None else bias,
        output,
        cu_seqlens,
        block_seq,
        block_start,
        scale * LOG2E,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        output.stride(0),
        output.stride(1),
        0 if bias is None else bias.stride(0),
        0 if bias is None else bias.stride(1),
        0 if window is None else window,
        **options,
    )
    return output


def _blocks(query: Tensor) -> tuple[int, int]:
    """Rows and columns of a tile: smaller where a head is wide, so that it fits into shared memory."""
    wide = query.shape[-1] > 128 or query.dtype == torch.float32
    return (32, 32) if wide else (64, 64)


def query_blocks(cu_seqlens: Tensor, block_m: int) -> tuple[Tensor, Tensor]:
    """Sequence and first row, in the sequence, of every block of queries, both ``[num_blocks]`` int32."""
    lengths = cu_seqlens[1:] - cu_seqlens[:-1]
    counts = (lengths + block_m - 1) // block_m
    seq = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), counts)
    before = torch.cumsum(counts, 0) - counts
    index = torch.arange(len(seq), device=lengths.device) - before[seq]
    return seq.to(torch.int32), (index * block_m).to(torch.int32)
