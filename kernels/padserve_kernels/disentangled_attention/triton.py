"""The kernel: online softmax as in varlen attention, the position terms from a tile's own distances.

A tile of BLOCK_M queries and BLOCK_N keys has BLOCK_M + BLOCK_N - 1 distances. It loads their rows of ``pos_key`` and
``pos_query``, in order of distance, multiplies all of its queries and all of its keys with them, and gathers from the
two products the element at each pair's distance. A position term so costs twice the multiplications of the content
term, and no memory outside the tile.

The row of a distance comes from ``buckets``, an int32 table by distance made once on the CPU: a logarithm of the
GPU's own may round to the other side of a bucket's border.
"""

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from padserve_kernels.disentangled_attention.reference import log_bucket
from padserve_kernels.dispatch import interpreting
from padserve_kernels.varlen_attention.triton import LOG2E, query_blocks


@triton.jit
def _disentangled_attention_kernel(
    query,
    key,
    value,
    pos_key,
    pos_query,
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
    stride_pk_row,
    stride_pk_head,
    stride_pq_row,
    stride_pq_head,
    stride_o_token,
    stride_o_head,
    att_span,
    farthest,
    head_dim: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    POS_KEY: tl.constexpr,
    POS_QUERY: tl.constexpr,
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

    slots = tl.arange(0, BLOCK_M + BLOCK_N)
    slot = tl.arange(0, BLOCK_M)[:, None] - tl.arange(0, BLOCK_N)[None, :] + (BLOCK_N - 1)

    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for at in range(0, length, BLOCK_N):
        columns = at + tl.arange(0, BLOCK_N)
        column_ok = columns < length
        k_at = key + (start + columns)[None, :] * stride_k_token + head * stride_k_head + dims[:, None]
        k = tl.load(k_at, mask=column_ok[None, :] & dim_ok[:, None], other=0.0)
        if UPCAST:
            k = k.to(tl.float32)
        scores = tl.dot(q, k, input_precision="ieee")

        distance = first - at - (BLOCK_N - 1) + slots
        bucket = tl.load(buckets + tl.minimum(tl.abs(distance), farthest))
        bucket = tl.where(distance < 0, -bucket, bucket)
        pos_row = tl.minimum(tl.maximum(bucket + att_span, 0), 2 * att_span - 1)
        if POS_KEY:
            pk_at = pos_key + pos_row[None, :] * stride_pk_row + head * stride_pk_head + dims[:, None]
            pk = tl.load(pk_at, mask=dim_ok[:, None], other=0.0)
            if UPCAST:
                pk = pk.to(tl.float32)
            scores += tl.gather(tl.dot(q, pk, input_precision="ieee"), slot, 1)
        if POS_QUERY:
            pq_at = pos_query + pos_row[:, None] * stride_pq_row + head * stride_pq_head + dims[None, :]
            pq = tl.load(pq_at, mask=dim_ok[None, :], other=0.0)
            if UPCAST:
                pq = pq.to(tl.float32)
            scores += tl.gather(tl.dot(pq, k, input_precision="ieee"), slot, 0)

        scores = tl.where(column_ok[None, :] & row_ok[:, None], scores * scale_log2, float("-inf"))
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


def disentangled_attention_triton(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pos_key: Tensor | None,
    pos_query: Tensor | None,
    cu_seqlens: Tensor,
    position_buckets: int,
    max_relative_positions: int,
    att_span: int,
    scale: float,
) -> Tensor:
    """See `padserve_kernels.disentangled_attention.disentangled_attention`. ``position_buckets``: 0 for none."""
    output = torch.zeros_like(query)
    block_size = _block(query)
    block_seq, block_start = query_blocks(cu_seqlens, block_size)
    if len(block_seq) == 0:
        return output
    head_dim = query.shape[-1]
    distances = triton.next_power_of_2(len(query))
    buckets = bucket_by_distance(distances, position_buckets, max_relative_positions, query.device)
    grid = (len(block_seq), query.shape[1])
    options: dict[str, Any] = {
        "head_dim": head_dim,
        "BLOCK_D": max(triton.next_power_of_2(head_dim), 16),
        "BLOCK_M": block_size,
        "BLOCK_N": block_size,
        "POS_KEY": pos_key is not None,
        "POS_QUERY": pos_query is not None,
        "UPCAST": interpreting(),
        "num_stages": 2,
    }
    pos_key = query if pos_key is None else pos_key
    pos_query = query if pos_query is None else pos_query
    _disentangled_attention_kernel[grid](
        query,
        key,
        value,
        pos_key,
        pos_query,
        output,
        cu_seqlens,
        block_seq,
        block_start,
        buckets,
        scale * LOG2E,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        pos_key.stride(0),
        pos_key.stride(1),
        pos_query.stride(0),
        pos_query.stride(1),
        output.stride(0),
        output.stride(1),
        att_span,
        distances - 1,
        **options,
    )
    return output


def _block(query: Tensor) -> int:
    """Rows and columns of a tile: fewer where a head is wide, so that its position rows fit into shared memory."""
    return 16 if triton.next_power_of_2(query.shape[-1]) * query.element_size() > 256 else 32


@lru_cache(maxsize=64)
def bucket_by_distance(
    distances: int, position_buckets: int, max_relative_positions: int, device: torch.device
) -> Tensor:
    """Bucket of each distance from 0 to distances - 1, int32; the distance itself where there are no buckets."""
    distance = torch.arange(distances)
    if position_buckets > 0:
        distance = log_bucket(distance, position_buckets, max_relative_positions)
    return distance.to(device, torch.int32)
