"""Bias and GELU in one pass over memory (Hendrycks and Gimpel 2016).

With u = x[i, j] + bias[j]:

    output[i, j] = u * (1 + erf(u / sqrt(2))) / 2                              approximate="none"
    output[i, j] = u * (1 + tanh(sqrt(2 / pi) * (u + 0.044715 * u^3))) / 2     approximate="tanh"

The sum u is never rounded to the stream's dtype.
"""

from typing import Literal

from torch import Tensor

from padserve_kernels.bias_gelu.reference import bias_gelu_reference
from padserve_kernels.dispatch import use_triton

__all__ = ["Approximate", "bias_gelu"]

Approximate = Literal["none", "tanh"]


def bias_gelu(x: Tensor, bias: Tensor, approximate: Approximate = "none") -> Tensor:
    """GELU of ``x + bias``; ``approximate`` as in `torch.nn.functional.gelu`.

    ``x``: ``[rows, dim]``, the last dimension contiguous; ``bias``: ``[dim]``, contiguous. Returns ``[rows, dim]`` in
    x's dtype.
    Errors: `ValueError` on shapes that do not fit and on another ``approximate``.
    """
    _check(x, bias, approximate)
    tanh = approximate == "tanh"
    if use_triton(x):
        from padserve_kernels.bias_gelu.triton import bias_gelu_triton

        return bias_gelu_triton(x, bias, tanh)
    return bias_gelu_reference(x, bias, tanh)


def _check(x: Tensor, bias: Tensor, approximate: str) -> None:
    if x.ndim != 2 or bias.shape != x.shape[1:]:
        raise ValueError(f"x and bias must be [rows, dim] and [dim], got {tuple(x.shape)}, {tuple(bias.shape)}")
    if x.stride(-1) != 1 or bias.stride(-1) != 1:
        raise ValueError("the last dimension of x and bias must be contiguous")
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate must be 'none' or 'tanh', got {approximate!r}")
