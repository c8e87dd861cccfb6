"""Int8 linear layers over the rows of a packed stream, each row (token) quantized by itself (W8A8).

A row x, with a factor ``smooth`` for each of its columns, and a weight matrix W with output channels c:

    y = x * smooth        middle = (min y + max y) / 2      scale = (max y - min y) / 254
    q = round((y - middle) / scale), in -127 .. 127
    x @ W.T + bias  ~  scale * weight.scale[c] * <q, weight.values[c]> + middle * weight.sums[c] + bias[c]

The scale is the row's own, so that a result does not depend on the batch it rode in. ``smooth`` moves magnitude from
activations with outlying channels into the weights (Xiao et al. 2023, SmoothQuant); the weights hold its inverse.
Products are exact integers. What follows a product (bias, activation, residual and LayerNorm, the next quantization)
runs in one pass over each row, in float32. A row that is not finite gives a row that is not finite.
"""

import torch
from torch import Tensor

from padserve_kernels.dispatch import use_numba
from padserve_kernels.int8_rows.layout import Epilogues, QuantizedRows, QuantizedWeight, RowActivation
from padserve_kernels.int8_rows.reference import Reference

__all__ = [
    "QuantizedRows",
    "QuantizedWeight",
    "RowActivation",
    "linear",
    "linear_activation",
    "linear_norm",
    "quantize",
]


def quantize(x: Tensor, smooth: Tensor) -> QuantizedRows:
    """``x``: float32 ``[rows, width]``, contiguous. Errors: `ValueError` on shapes that do not fit."""
    if x.ndim != 2 or x.dtype != torch.float32 or smooth.shape != x.shape[1:]:
        raise ValueError(f"x must be float32 [rows, width] and smooth [width], got {x.shape} and {smooth.shape}")
    return _epilogues(x).quantize(x.contiguous(), smooth)


def linear(rows: QuantizedRows, weight: QuantizedWeight) -> Tensor:
    """``x @ W.T + bias``, float32 ``[rows, out_features]``."""
    _check(rows, weight)
    return _epilogues(rows.values).dequantize(weight.product(rows), rows, weight)


def linear_activation(
    rows: QuantizedRows, weight: QuantizedWeight, activation: RowActivation, smooth: Tensor
) -> QuantizedRows:
    """``activation(x @ W.T + bias)``, quantized with ``smooth`` ``[out_features]`` for the product that follows."""
    _check(rows, weight)
    return _epilogues(rows.values).activate(weight.product(rows), rows, weight, activation, smooth)


def linear_norm(
    rows: QuantizedRows,
    weight: QuantizedWeight,
    residual: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
    smooth: Tensor,
) -> tuple[Tensor, QuantizedRows]:
    """``LayerNorm(residual + x @ W.T + bias)`` in float32, and quantized with ``smooth`` ``[out_features]``.

    ``residual``: float32 ``[rows, out_features]``, contiguous.
    """
    _check(rows, weight)
    if residual.shape != (len(rows.values), len(weight.values)):
        raise ValueError(f"the residual {tuple(residual.shape)} is not [rows, out_features]")
    products = weight.product(rows)
    return _epilogues(products).add_norm(products, rows, weight, residual, norm_weight, norm_bias, eps, smooth)


def _epilogues(tensor: Tensor) -> Epilogues:
    if use_numba(tensor):
        from padserve_kernels.int8_rows.numba import Compiled

        return Compiled()
    return Reference()


def _check(rows: QuantizedRows, weight: QuantizedWeight) -> None:
    if rows.values.ndim != 2 or rows.values.shape[1] != weight.values.shape[1]:
        raise ValueError(f"rows {tuple(rows.values.shape)} do not fit a weight {tuple(weight.values.shape)}")
