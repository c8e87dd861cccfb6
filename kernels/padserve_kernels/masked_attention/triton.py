"""The kernel: online softmax (Dao et al. 2022, FlashAttention) over one row's tokens for a block of its queries.

Under triton's interpreter products run in float32 (``UPCAST``): its dot is wrong for bfloat16.

The program id of axis 0 counts blocks of queries over all rows of the batch. A program walks the keys between its
row's first token and its last, or its own last query where causal; a block that is all padding walks none and writes
its zeros.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from padserve_kernels.dispatch import interpreting

LOG2E = 1.4426950408889634


@triton.jit
def _masked_attention_kernel(
    query,
    key,
    value,
    output,
    lengths,
    scale_log2,
    length,
    num_blocks,
    stride_q_batch,
    stride_q_head,
    stride_q_token,
    stride_k_batch,
    stride_k_head,
    stride_k_token,
    stride_v_batch,
    stride_v_head,
    stride_v_token,
    stride_o_batch,
    stride_o_head,
    stride_o_token,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
    LEFT: tl.constexpr,
    UPCAST: tl.constexpr,
):
    batch = (tl.program_id(0) // num_blocks).to(tl.int64)
    first = tl.program_id(0) % num_blocks * BLOCK_M
    head = tl.program_id(1).to(tl.int64)
    kv_head = head // group
    count = tl.minimum(tl.maximum(tl.load(lengths + batch), 0), length).to(tl.int32)
    start = 0
    stop = count
    if LEFT:
        start = length - count
        stop = start + count

    rows = first + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    row_ok = (rows >= start) & (rows < stop)
    dim_ok = dims < head_dim
    q_rows = query + batch * stride_q_batch + head * stride_q_head
    k_rows = key + batch * stride_k_batch + kv_head * stride_k_head
    v_rows = value + batch * stride_v_batch + kv_head * stride_v_head
    q_at = q_rows + rows.to(tl.int64)[:, None] * stride_q_token + dims[None, :]
    q = tl.load(q_at, mask=row_ok[:, None] & dim_ok[None, :], other=0.0)
    if UPCAST:
        q = q.to(tl.float32)

    high = stop
    if CAUSAL:
        high = tl.minimum(high, first + BLOCK_M)
    high = tl.where((first >= stop) | (first + BLOCK_M <= start), start, high)

    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for at in range(start, high, BLOCK_N):
        columns = at + tl.arange(0, BLOCK_N)
        column_ok = columns < stop
        k_at = k_rows + columns.to(tl.int64)[None, :] * stride_k_token + dims[:, None]
        k = tl.load(k_at, mask=column_ok[None, :] & dim_ok[:, None], other=0.0)
        if UPCAST:
            k = k.to(tl.float32)
        scores = tl.dot(q, k, input_precision="ieee") * scale_log2
        seen = column_ok[None, :] & row_ok[:, None]
        if CAUSAL:
            seen = seen & (columns[None, :] <= rows[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - base[:, None])
        decay = tl.exp2(peak - base)
        total = total * decay + tl.sum(weights, 1)
        v_at = v_rows + columns.to(tl.int64)[:, None] * stride_v_token + dims[None, :]
        v = tl.load(v_at, mask=column_ok[:, None] & dim_ok[None, :], other=0.0)
        if UPCAST:
            v = v.to(tl.float32)
        acc = acc * decay[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        peak = higher
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    o_rows = output + batch * stride_o_batch + head * stride_o_head
    o_at = o_rows + rows.to(tl.int64)[:, None] * stride_o_token + dims[None, :]
    tl.store(o_at, acc.to(output.dtype.element_ty), mask=(rows < length)[:, None] & dim_ok[None, :])


def masked_attention_triton(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor,
    scale: float,
    causal: bool = False,
    left: bool = False,
) -> Tensor:
    """See `padserve_kernels.masked_attention.masked_attention`."""
    output = torch.empty_like(query)
    if output.numel() == 0:
        return output
    batch, num_heads, length, head_dim = query.shape
    block_m, block_n = _blocks(query)
    num_blocks = triton.cdiv(length, block_m)
    options: dict[str, Any] = {
        "group": num_heads // key.shape[1],
        "head_dim": head_dim,
        "BLOCK_D": max(triton.next_power_of_2(head_dim), 16),
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "CAUSAL": causal,
        "LEFT": left,
        "UPCAST": interpreting(),
    }
    _masked_attention_kernel[(num_blocks * batch, num_heads)](
        query,
        key,
        value,
        output,
        lengths,
        scale * LOG2E,
        length,
        num_blocks,
        *query.stride()[:3],
        *key.stride()[:3],
        *value.stride()[:3],
        *output.stride()[:3],
        **options,
    )
    return output


def _blocks(query: Tensor) -> tuple[int, int]:
    """Rows and columns of a tile: smaller where a head's row is wide, so that it fits into shared memory."""
    row_bytes = query.shape[-1] * query.element_size()
    if row_bytes > 512:
        return 16, 16
    wide = row_bytes > 256 or query.dtype == torch.float32
    return (32, 32) if wide else (64, 64)
