"""The kernel: a program takes one block of columns of one row.

The tanh form is written with the sigmoid of twice its argument, which is the same number: (1 + tanh(t)) / 2 =
1 / (1 + exp(-2 * t)). The exponential is taken of what is negative, so that it never overflows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _bias_gelu_kernel(
    x,
    bias,
    output,
    dim,
    stride_x,
    stride_o,
    BLOCK_D: tl.constexpr,
    TANH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    dims = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    ok = dims < dim
    u = tl.load(x + row * stride_x + dims, mask=ok, other=0.0).to(tl.float32)
    u += tl.load(bias + dims, mask=ok, other=0.0).to(tl.float32)
    if TANH:
        z = 1.5957691216057308 * (u + 0.044715 * u * u * u)
        tail = tl.exp(-tl.abs(z))
        result = u * tl.where(z < 0.0, tail, 1.0) / (1.0 + tail)
    else:
        result = 0.5 * u * (1.0 + tl.erf(u * 0.7071067811865476))
    tl.store(output + row * stride_o + dims, result.to(output.dtype.element_ty), mask=ok)


def bias_gelu_triton(x: Tensor, bias: Tensor, tanh: bool = False) -> Tensor:
    """See `padserve_kernels.bias_gelu.bias_gelu`."""
    output = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, dim = x.shape
    if output.numel() == 0:
        return output
    block_d = min(triton.next_power_of_2(dim), 1024)
    _bias_gelu_kernel[(rows, triton.cdiv(dim, block_d))](
        x, bias, output, dim, x.stride(0), output.stride(0), BLOCK_D=block_d, TANH=tanh
    )
    return output
