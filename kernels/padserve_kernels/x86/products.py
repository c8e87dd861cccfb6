"""Whole products of packed weights, made of tiles.

A weight ``[out_features, in_features]`` is packed into panels of 64 outputs: ``[panels, words, 64]`` 32-bit words, each
with the 1 (float32), 2 (bfloat16) or 4 (int8) inputs of a column that one instruction multiplies; int8 weights that
meet bfloat16 rows take 16-bit words. What is missing of a
panel or a word is zero.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit
from numba.extending import overload

from padserve_kernels.x86.amx import tiled_product, widened_product
from padserve_kernels.x86.features import TILE_WORDS, Kind, tiled
from padserve_kernels.x86.tiles import KIND_OF, LANES, ROWS, VECTORS, small_product

PANEL = LANES * VECTORS
IN_WORD: dict[Kind, int] = {"float32": 1, "bfloat16": 2, "int8": 4, "int8_weights": 2}
STORED: dict[Kind, Any] = {"float32": np.float32, "bfloat16": np.uint16, "int8": np.int8, "int8_weights": np.int8}
"""How weights are held; of bfloat16 the bits."""
OPERAND: dict[Kind, Any] = {
    "float32": np.float32,
    "bfloat16": np.uint16,
    "int8": np.uint8,
    "int8_weights": np.uint16,
}
"""How rows are held."""


def words_of(kind: Kind, width: int) -> int:
    """32-bit words that hold a row of ``width``, of processors with tile registers whole tiles of them."""
    words = -(-width // IN_WORD[kind])
    return -(-words // TILE_WORDS) * TILE_WORDS if tiled(kind) else words


def padded(outputs: int) -> int:
    """Columns that a product of so many outputs writes."""
    return -(-outputs // PANEL) * PANEL


def pack_weight(kind: Kind, weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """``weight``: ``[out_features, in_features]`` in `STORED`'s dtype. Returns it packed, flat."""
    outputs, inputs = weight.shape
    part, words = IN_WORD[kind], words_of(kind, inputs)
    whole = np.zeros((padded(outputs), words * part), dtype=STORED[kind])
    whole[:outputs, :inputs] = weight
    panels = whole.reshape(-1, PANEL, words, part).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(panels).reshape(-1)


def product(operand, rows, weight, outputs, c):  # type: ignore[no-untyped-def]
    """``c[:rows, :outputs] = operand[:rows] @ weight`` for compiled functions.

    ``operand``: ``[>= rows, in_features]`` float32, uint16 or uint8, see `small_product`. ``weight``: flat, from
    `pack_weight`. ``outputs``: a multiple of 64. ``c``: ``[>= rows, >= outputs]`` of 32-bit elements.
    """
    raise NotImplementedError("for compiled functions")


@overload(product, jit_options={"nogil": True})
def _product(operand, rows, weight, outputs, c):  # type: ignore[no-untyped-def]
    kind = KIND_OF[operand.dtype, weight.dtype]
    if not tiled(kind):
        return _product_of_rows.py_func
    return (widened_product if kind == "int8_weights" else tiled_product).py_func


@njit(nogil=True)
def _product_of_rows(operand, rows, weight, outputs, c):  # type: ignore[no-untyped-def]
    a, a_stride = operand.ctypes.data, operand.strides[0]
    to, c_stride = c.ctypes.data, c.strides[0]
    words = a_stride // 4
    line = PANEL * 4 * weight.itemsize // operand.itemsize  # bytes of a word of all columns
    for panel in range(outputs // PANEL):
        columns = weight.ctypes.data + panel * words * line
        for row in range(0, rows, ROWS):
            count = min(rows - row, ROWS)
            at, target = a + row * a_stride, to + row * c_stride + panel * PANEL * 4
            small_product(operand, weight, count, VECTORS, at, a_stride, columns, line, words, target, c_stride)
