"""The kernel: a program walks the rows of one sequence, holding its sum, whole rows wide, in registers."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _mean_pool_normalize_kernel(
    hidden,
    cu_seqlens,
    output,
    eps,
    stride_h,
    stride_cu,
    stride_o,
    dim: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    NORMALIZE: tl.constexpr,
):
    seq = tl.program_id(0).to(tl.int64)
    start = tl.load(cu_seqlens + seq * stride_cu).to(tl.int64)
    stop = tl.load(cu_seqlens + (seq + 1) * stride_cu).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)
    ok = dims < dim
    sums = tl.zeros([BLOCK_ROWS, BLOCK_D], tl.float32)
    for at in range(start, stop, BLOCK_ROWS):
        rows = at + tl.arange(0, BLOCK_ROWS)
        h_at = hidden + rows[:, None] * stride_h + dims[None, :]
        sums += tl.load(h_at, mask=(rows < stop)[:, None] & ok[None, :], other=0.0).to(tl.float32)
    result = tl.sum(sums, 0) / tl.maximum(stop - start, 1).to(tl.float32)
    if NORMALIZE:
        result = result / tl.maximum(tl.sqrt(tl.sum(result * result, 0)), eps)
    tl.store(output + seq * stride_o + dims, result.to(output.dtype.element_ty), mask=ok)


def mean_pool_normalize_triton(hidden: Tensor, cu_seqlens: Tensor, normalize: bool, eps: float) -> Tensor:
    """See `padserve_kernels.mean_pool_normalize.mean_pool_normalize`."""
    num_seqs, dim = len(cu_seqlens) - 1, hidden.shape[1]
    output = torch.empty((num_seqs, dim), dtype=hidden.dtype, device=hidden.device)
    if output.numel() == 0:
        return output
    block_d = triton.next_power_of_2(dim)
    _mean_pool_normalize_kernel[(num_seqs,)](
        hidden,
        cu_seqlens,
        output,
        eps,
        hidden.stride(0),
        cu_seqlens.stride(0),
        output.stride(0),
        dim=dim,
        BLOCK_D=block_d,
        BLOCK_ROWS=max(4096 // block_d, 1),
        NORMALIZE=normalize,
        num_warps=8,
    )
    return output
