"""The kernel: a program gathers one token's three rows into registers, sums and normalizes them.

An id outside its table is never followed: its row is NaN.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _gathered(table, ids, token, stride_ids, stride_table, entries, dims, dim):
    """``[BLOCK_D]`` float32: the token's row of a table, NaN where its id is none of the table's."""
    at = tl.load(ids + token * stride_ids).to(tl.int64)
    known = (at >= 0) & (at < entries)
    row = tl.load(table + at * stride_table + dims, mask=dims < tl.where(known, dim, 0), other=0.0)
    return tl.where(known, row.to(tl.float32), float("nan"))


@triton.jit
def _embedding_layer_norm_kernel(
    input_ids,
    position_ids,
    token_type_ids,
    words,
    positions,
    token_types,
    weight,
    bias,
    output,
    eps,
    stride_input_ids,
    stride_position_ids,
    stride_token_type_ids,
    stride_words,
    stride_positions,
    stride_token_types,
    stride_o,
    num_words,
    num_positions,
    num_token_types,
    dim: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)
    ok = dims < dim
    total = _gathered(words, input_ids, token, stride_input_ids, stride_words, num_words, dims, dim)
    total += _gathered(positions, position_ids, token, stride_position_ids, stride_positions, num_positions, dims, dim)
    total += _gathered(
        token_types, token_type_ids, token, stride_token_type_ids, stride_token_types, num_token_types, dims, dim
    )
    centred = tl.where(ok, total - tl.sum(total, 0) / dim, 0.0)
    variance = tl.sum(centred * centred, 0) / dim
    w = tl.load(weight + dims, mask=ok, other=0.0).to(tl.float32)
    b = tl.load(bias + dims, mask=ok, other=0.0).to(tl.float32)
    result = centred * tl.rsqrt(variance + eps) * w + b
    tl.store(output + token * stride_o + dims, result.to(output.dtype.element_ty), mask=ok)


def embedding_layer_norm_triton(
    ids: tuple[Tensor, Tensor, Tensor],
    tables: tuple[Tensor, Tensor, Tensor],
    weight: Tensor,
    bias: Tensor,
    eps: float,
) -> Tensor:
    """See `padserve_kernels.embedding_layer_norm.embedding_layer_norm`."""
    words = tables[0]
    total_tokens, dim = len(ids[0]), words.shape[1]
    output = torch.empty((total_tokens, dim), dtype=words.dtype, device=words.device)
    if total_tokens == 0:
        return output
    block_d = triton.next_power_of_2(dim)
    _embedding_layer_norm_kernel[(total_tokens,)](
        *ids,
        *tables,
        weight,
        bias,
        output,
        eps,
        *(rows.stride(0) for rows in ids),
        *(table.stride(0) for table in tables),
        output.stride(0),
        *(len(table) for table in tables),
        dim=dim,
        BLOCK_D=block_d,
        num_warps=min(max(block_d // 256, 1), 16),
    )
    return output
