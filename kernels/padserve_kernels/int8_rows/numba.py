"""The int8 epilogues compiled for the processor: one pass over each row, in the vectors that it has.

All arithmetic is float32. Sums may be taken in any order, but the order depends on a row's width only, never on the
batch. Extremes are taken over the bits of the numbers, as integers of the same order: so loops become vectors, and NaN,
which lies beyond infinity there, is not lost.
"""

from typing import Any

import numpy as np
import torch
from numba import float32, int8, int32, njit
from torch import Tensor

from padserve_kernels.int8_rows.layout import QuantizedRows, QuantizedWeight, RowActivation

CODES: dict[RowActivation, int] = {"gelu": 0, "gelu_tanh": 1, "relu": 2}
OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",  # division by zero gives infinity, as in torch, and needs no branch
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},  # not nnan and ninf: what is not finite must stay so
}
ROUND = np.float32(1.5 * 2**23)
"""Added to a number below 2^22 it leaves its nearest integer in the lowest bits."""
HALF, ONE = np.float32(0.5), np.float32(1.0)

F1, F2, I2, B2 = float32[::1], float32[:, ::1], int32[:, ::1], int8[:, ::1]


@njit(inline="always", **OPTIONS)
def _ordered(bits):  # type: ignore[no-untyped-def]
    """Integers in the order of the floats whose bits they are; its own inverse."""
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@njit(**OPTIONS)
def _quantize_row(buffer, bits, values, scale, middle, row, width):  # type: ignore[no-untyped-def]
    """Quantize ``buffer[:width]``; ``bits`` are its bits. One place beyond serves to turn bits into a float."""
    low = np.int32(0x7FFFFFFF)
    high = np.int32(-0x80000000)
    for column in range(width):
        place = _ordered(bits[column])
        low = min(low, place)
        high = max(high, place)
    bits[width] = _ordered(low)
    least = buffer[width]
    bits[width] = _ordered(high)
    most = buffer[width]
    centre = (least + most) * HALF
    span = most - least
    inverse = np.float32(254.0) / span if span > np.float32(0.0) else np.float32(0.0)
    scale[row] = span / np.float32(254.0)
    middle[row] = centre
    for column in range(width):
        buffer[column] = (buffer[column] - centre) * inverse + ROUND
    for column in range(width):
        values[row, column] = np.int8(bits[column])


@njit((F2, F1, B2, F1, F1), **OPTIONS)
def _quantize(x, smooth, values, scale, middle):  # type: ignore[no-untyped-def]
    count, width = x.shape
    buffer = np.empty(width + 1, np.float32)
    bits = buffer.view(np.int32)
    for row in range(count):
        for column in range(width):
            buffer[column] = x[row, column] * smooth[column]
        _quantize_row(buffer, bits, values, scale, middle, row, width)


@njit((I2, F1, F1, F1, F1, F1, F2), **OPTIONS)
def _dequantize(products, scale, middle, w_scale, w_sums, w_bias, output):  # type: ignore[no-untyped-def]
    count, width = products.shape
    for row in range(count):
        step = scale[row]
        centre = middle[row]
        for column in range(width):
            value = np.float32(products[row, column]) * (step * w_scale[column])
            output[row, column] = value + centre * w_sums[column] + w_bias[column]


@njit(inline="always", **OPTIONS)
def _erf(x):  # type: ignore[no-untyped-def]
    """Rational, fitted by least squares, and one beyond 3.8; within 4e-7 everywhere."""
    z = x * x
    p = np.float32(2.132180621979917e-06)
    p = p * z + np.float32(0.0002879958044042823)
    p = p * z + np.float32(0.0036934161634433775)
    p = p * z + np.float32(0.05254674750020793)
    p = p * z + np.float32(0.1881114620625917)
    p = p * z + np.float32(1.1283790751372285)
    q = np.float32(3.909816374429407e-05)
    q = q * z + np.float32(0.0011536984946042144)
    q = q * z + np.float32(0.014822537802609738)
    q = q * z + np.float32(0.11325297315373282)
    q = q * z + np.float32(0.5000417009095254)
    q = q * z + ONE
    y = x * p / q
    y = ONE if x > np.float32(3.8) else y
    return -ONE if x < np.float32(-3.8) else y


@njit(inline="always", **OPTIONS)
def _tanh(x):  # type: ignore[no-untyped-def]
    """Rational, fitted by least squares, and one beyond 7.5; within 7e-7 everywhere."""
    z = x * x
    p = np.float32(4.3745939863609265e-11)
    p = p * z + np.float32(1.2169136176265053e-07)
    p = p * z + np.float32(4.4037106565987946e-05)
    p = p * z + np.float32(0.0044931946750065)
    p = p * z + np.float32(0.14149416374495247)
    p = p * z + ONE
    q = np.float32(3.3523627875517357e-09)
    q = q * z + np.float32(2.7703116202684173e-06)
    q = q * z + np.float32(0.0005138559697994351)
    q = q * z + np.float32(0.029435693809112026)
    q = q * z + np.float32(0.47482749699248916)
    q = q * z + ONE
    y = x * p / q
    y = ONE if x > np.float32(7.5) else y
    return -ONE if x < np.float32(-7.5) else y


@njit((I2, F1, F1, F1, F1, F1, int32, F1, B2, F1, F1), **OPTIONS)
def _activate(products, scale, middle, w_scale, w_sums, w_bias, code, smooth, values, out_scale, out_middle):  # type: ignore[no-untyped-def]
    count, width = products.shape
    buffer = np.empty(width + 1, np.float32)
    bits = buffer.view(np.int32)
    for row in range(count):
        step = scale[row]
        centre = middle[row]
        for column in range(width):
            value = np.float32(products[row, column]) * (step * w_scale[column])
            buffer[column] = value + centre * w_sums[column] + w_bias[column]
        if code == 0:
            for column in range(width):
                x = buffer[column]
                buffer[column] = HALF * x * (ONE + _erf(x * np.float32(0.7071067811865476))) * smooth[column]
        elif code == 1:
            for column in range(width):
                x = buffer[column]
                inner = np.float32(0.7978845608028654) * (x + np.float32(0.044715) * x * x * x)
                buffer[column] = HALF * x * (ONE + _tanh(inner)) * smooth[column]
        else:
            for column in range(width):
                x = buffer[column]
                buffer[column] = (np.float32(0.0) if x < np.float32(0.0) else x) * smooth[column]
        _quantize_row(buffer, bits, values, out_scale, out_middle, row, width)


@njit((I2, F1, F1, F1, F1, F1, F2, F1, F1, float32, F1, F2, B2, F1, F1), **OPTIONS)
def _add_norm(  # type: ignore[no-untyped-def]
    products,
    scale,
    middle,
    w_scale,
    w_sums,
    w_bias,
    residual,
    norm_weight,
    norm_bias,
    eps,
    smooth,
    output,
    values,
    out_scale,
    out_middle,
):
    count, width = products.shape
    buffer = np.empty(width + 1, np.float32)
    bits = buffer.view(np.int32)
    for row in range(count):
        step = scale[row]
        centre = middle[row]
        total = np.float32(0.0)
        for column in range(width):
            value = np.float32(products[row, column]) * (step * w_scale[column])
            value += centre * w_sums[column] + w_bias[column] + residual[row, column]
            buffer[column] = value
            total += value
        mean = total / np.float32(width)
        squares = np.float32(0.0)
        for column in range(width):
            apart = buffer[column] - mean
            squares += apart * apart
        inverse = ONE / np.sqrt(squares / np.float32(width) + eps)
        for column in range(width):
            value = (buffer[column] - mean) * inverse * norm_weight[column] + norm_bias[column]
            output[row, column] = value
            buffer[column] = value * smooth[column]
        _quantize_row(buffer, bits, values, out_scale, out_middle, row, width)


class Compiled:
    """See `padserve_kernels.int8_rows`."""

    def quantize(self, x: Tensor, smooth: Tensor) -> QuantizedRows:
        rows = _empty(x.shape[0], x.shape[1])
        _quantize(x.numpy(), smooth.numpy(), rows.values.numpy(), rows.scale.numpy(), rows.middle.numpy())
        return rows

    def dequantize(self, products: Tensor, rows: QuantizedRows, weight: QuantizedWeight) -> Tensor:
        output = torch.empty(products.shape)
        _dequantize(products.numpy(), *_arrays(rows, weight), output.numpy())
        return output

    def activate(
        self,
        products: Tensor,
        rows: QuantizedRows,
        weight: QuantizedWeight,
        activation: RowActivation,
        smooth: Tensor,
    ) -> QuantizedRows:
        out = _empty(products.shape[0], products.shape[1])
        given = (products.numpy(), *_arrays(rows, weight), CODES[activation], smooth.numpy())
        _activate(*given, out.values.numpy(), out.scale.numpy(), out.middle.numpy())
        return out

    def add_norm(
        self,
        products: Tensor,
        rows: QuantizedRows,
        weight: QuantizedWeight,
        residual: Tensor,
        norm_weight: Tensor,
        norm_bias: Tensor,
        eps: float,
        smooth: Tensor,
    ) -> tuple[Tensor, QuantizedRows]:
        output, out = torch.empty(products.shape), _empty(products.shape[0], products.shape[1])
        norm = (norm_weight.numpy(), norm_bias.numpy(), np.float32(eps))
        given = (products.numpy(), *_arrays(rows, weight), residual.contiguous().numpy(), *norm, smooth.numpy())
        _add_norm(*given, output.numpy(), out.values.numpy(), out.scale.numpy(), out.middle.numpy())
        return output, out


def _empty(count: int, width: int) -> QuantizedRows:
    return QuantizedRows(torch.empty((count, width), dtype=torch.int8), torch.empty(count), torch.empty(count))


def _arrays(rows: QuantizedRows, weight: QuantizedWeight) -> tuple[Any, ...]:
    return (
        rows.scale.numpy(),
        rows.middle.numpy(),
        weight.scale.numpy(),
        weight.sums.numpy(),
        weight.bias.numpy(),
    )
