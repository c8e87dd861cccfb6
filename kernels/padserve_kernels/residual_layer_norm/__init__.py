"""Residual layer norm: the sum of two streams and its layer norm in one pass over memory.

    sum[i]    = x[i] + residual[i]
    output[i] = (sum[i] - mean(sum[i])) / sqrt(variance(sum[i]) + eps) * weight + bias

Mean and variance (biased) are over a row. The sum is never rounded to the streams' dtype.
"""

from torch import Tensor

from padserve_kernels.dispatch import use_triton
from padserve_kernels.residual_layer_norm.reference import residual_layer_norm_reference

__all__ = ["residual_layer_norm"]


def residual_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-12) -> Tensor:
    """Layer norm of ``x + residual``.

    ``x, residual``: ``[rows, dim]``, the last dimension contiguous; ``weight, bias``: ``[dim]``, contiguous.
    Returns ``[rows, dim]`` in x's dtype.
    Errors: `ValueError` on shapes that do not fit.
    """
    _check(x, residual, weight, bias)
    if use_triton(x):
        from padserve_kernels.residual_layer_norm.triton import residual_layer_norm_triton

        return residual_layer_norm_triton(x, residual, weight, bias, eps)
    return residual_layer_norm_reference(x, residual, weight, bias, eps)


def _check(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> None:
    if x.ndim != 2 or x.shape[1] == 0 or x.shape != residual.shape:
        raise ValueError(f"x and residual must be [rows, dim], got {tuple(x.shape)}, {tuple(residual.shape)}")
    if weight.shape != x.shape[1:] or bias.shape != x.shape[1:]:
        raise ValueError(f"weight and bias must be [{x.shape[1]}], got {tuple(weight.shape)}, {tuple(bias.shape)}")
    if any(tensor.stride(-1) != 1 for tensor in (x, residual, weight, bias)):
        raise ValueError("the last dimension of x, residual, weight and bias must be contiguous")
