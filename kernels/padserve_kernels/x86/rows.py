"""What happens to one row between two products, as compiled functions. ``buffer`` holds the row in float32."""

import numpy as np
from numba import njit, types
from numba.extending import overload

from padserve_kernels.x86.features import Activation
from padserve_kernels.x86.scalar import (
    HALF,
    LOG2_E,
    ONE,
    OPTIONS,
    bits_of,
    erf,
    exp2,
    float_of,
    ordered,
    round_of,
    tanh,
)

CODES: dict[Activation, int] = {"gelu": 0, "gelu_tanh": 1, "relu": 2, "silu": 3}


def put(buffer, width, smooth, operand, row, step, centre):  # type: ignore[no-untyped-def]
    """What the next product multiplies: the buffer, as ``operand``'s element type says.

    Of bytes: the row, times ``smooth``, quantized by itself; ``step[row]`` and ``centre[row]`` say how. What is left of
    the operand's last word is zero. The buffer is free afterwards.
    """
    raise NotImplementedError("for compiled functions")


@overload(put, jit_options=OPTIONS)
def _put(buffer, width, smooth, operand, row, step, centre):  # type: ignore[no-untyped-def]
    def put_float(buffer, width, smooth, operand, row, step, centre):  # type: ignore[no-untyped-def]
        for column in range(width):
            operand[row, column] = buffer[column]

    def put_half(buffer, width, smooth, operand, row, step, centre):  # type: ignore[no-untyped-def]
        for column in range(width):
            value = buffer[column]
            bits = bits_of(value)
            bits += np.int32(0x7FFF) + ((bits >> np.int32(16)) & np.int32(1))
            operand[row, column] = np.uint16(bits >> np.int32(16)) if value == value else np.uint16(0x7FC0)
        for column in range(width, operand.shape[1]):
            operand[row, column] = 0

    def put_bytes(buffer, width, smooth, operand, row, step, centre):  # type: ignore[no-untyped-def]
        low, high = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
        for column in range(width):
            value = buffer[column] * smooth[column]
            buffer[column] = value
            place = ordered(bits_of(value))
            low, high = min(low, place), max(high, place)
        least, most = float_of(ordered(low)), float_of(ordered(high))
        middle, span = (least + most) * HALF, most - least
        inverse = np.float32(254.0) / span if span > np.float32(0.0) else np.float32(0.0)
        step[row] = span / np.float32(254.0)
        centre[row] = middle
        for column in range(width):
            operand[row, column] = np.uint8(np.int32(round_of((buffer[column] - middle) * inverse)) + np.int32(128))
        for column in range(width, operand.shape[1]):
            operand[row, column] = 0

    return {types.float32: put_float, types.uint16: put_half, types.uint8: put_bytes}[operand.dtype]


def take(operand, products, row, width, weight, layer, given, step, centre, buffer):  # type: ignore[no-untyped-def]
    """A product's row with its bias, into the buffer. ``given``: its operand's row in ``step`` and ``centre``."""
    raise NotImplementedError("for compiled functions")


@overload(take, jit_options=OPTIONS)
def _take(operand, products, row, width, weight, layer, given, step, centre, buffer):  # type: ignore[no-untyped-def]
    def take_float(operand, products, row, width, weight, layer, given, step, centre, buffer):  # type: ignore[no-untyped-def]
        bias, scale = weight[1][layer], weight[2][layer]
        if len(scale) > 1:  # of int8 weights
            for column in range(width):
                buffer[column] = products[row, column] * scale[column] + bias[column]
        else:
            for column in range(width):
                buffer[column] = products[row, column] + bias[column]

    def take_ints(operand, products, row, width, weight, layer, given, step, centre, buffer):  # type: ignore[no-untyped-def]
        bias, scale, sums, added = weight[1][layer], weight[2][layer], weight[3][layer], weight[4][layer]
        row_step, middle = step[given], centre[given]
        for column in range(width):
            value = np.float32(bits_of(products[row, column]) - added[column]) * (row_step * scale[column])
            buffer[column] = value + middle * sums[column] + bias[column]

    return take_ints if operand.dtype == types.uint8 else take_float


@njit(**OPTIONS)
def add_row(table, row, width, buffer):  # type: ignore[no-untyped-def]
    """Add a table's row to the buffer. ``table``: bits, float32 as int32 or bfloat16 as uint16, ``[rows, width]``."""
    shift = np.int32(0) if table.itemsize == 4 else np.int32(16)
    for column in range(width):
        buffer[column] += float_of(np.int32(table[row, column]) << shift)


@njit(**OPTIONS)
def mean_rows(rows, ends, width, output):  # type: ignore[no-untyped-def]
    """``output[i]``: the mean of rows ``ends[i] .. ends[i + 1]``."""
    for sequence in range(len(ends) - 1):
        start, stop = ends[sequence], ends[sequence + 1]
        for column in range(width):
            output[sequence, column] = np.float32(0.0)
        for row in range(start, stop):
            for column in range(width):
                output[sequence, column] += rows[row, column]
        for column in range(width):
            output[sequence, column] /= np.float32(stop - start)


@njit(**OPTIONS)
def activate(buffer, width, code):  # type: ignore[no-untyped-def]
    """``code``: see `CODES`."""
    if code == 0:
        for column in range(width):
            x = buffer[column]
            buffer[column] = HALF * x * (ONE + erf(x * np.float32(0.7071067811865476)))
    elif code == 1:
        for column in range(width):
            x = buffer[column]
            inner = np.float32(0.7978845608028654) * (x + np.float32(0.044715) * x * x * x)
            buffer[column] = HALF * x * (ONE + tanh(inner))
    elif code == 2:
        for column in range(width):
            x = buffer[column]
            buffer[column] = np.float32(0.0) if x < np.float32(0.0) else x
    else:
        for column in range(width):
            x = buffer[column]
            buffer[column] = x / (ONE + exp2(-x * LOG2_E))


@njit(**OPTIONS)
def add_norm(buffer, residual, width, weight, bias, eps, output):  # type: ignore[no-untyped-def]
    """``LayerNorm(residual + buffer)`` into ``output`` and the buffer. ``output`` may be the residual."""
    total = np.float32(0.0)
    for column in range(width):
        value = buffer[column] + residual[column]
        buffer[column] = value
        total += value
    mean = total / np.float32(width)
    squares = np.float32(0.0)
    for column in range(width):
        apart = buffer[column] - mean
        squares += apart * apart
    inverse = ONE / np.sqrt(squares / np.float32(width) + eps)
    for column in range(width):
        buffer[column] = (buffer[column] - mean) * inverse * weight[column] + bias[column]
    for column in range(width):
        output[column] = buffer[column]


@njit(**OPTIONS)
def norm(buffer, width, weight, bias, eps, rms):  # type: ignore[no-untyped-def]
    """RMSNorm, or LayerNorm, of the buffer in place. ``bias``: of LayerNorm."""
    if rms:
        squares = np.float32(0.0)
        for column in range(width):
            squares += buffer[column] * buffer[column]
        inverse = ONE / np.sqrt(squares / np.float32(width) + eps)
        for column in range(width):
            buffer[column] = buffer[column] * inverse * weight[column]
        return
    total = np.float32(0.0)
    for column in range(width):
        total += buffer[column]
    mean = total / np.float32(width)
    squares = np.float32(0.0)
    for column in range(width):
        apart = buffer[column] - mean
        squares += apart * apart
    inverse = ONE / np.sqrt(squares / np.float32(width) + eps)
    for column in range(width):
        buffer[column] = (buffer[column] - mean) * inverse * weight[column] + bias[column]
