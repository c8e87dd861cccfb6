"""Products in the tile registers of processors with AMX, as LLVM code inside compiled functions.

A tile holds 16 rows of 16 32-bit words. Of a weight packed by `padserve_kernels.x86.products` 16 words of 16 columns
are one as they lie. What each sum adds, and in which order, depends neither on the number of rows nor on their places.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from padserve_kernels.x86.features import TILE_WORDS as WORDS
from padserve_kernels.x86.tiles import KIND_OF

TILE_ROWS = 16
TILE_BYTES = 64
"""A row's."""
_LINE = 4 * TILE_BYTES
"""Bytes from a word of a panel's 64 columns to the next."""
_I8, _I64 = ir.IntType(8), ir.IntType(64)


def _configurations() -> npt.NDArray[np.uint8]:
    """``[2, 17, 64]``: as LDTILECFG takes it, for one tile of so many rows, or for 16 and so many more.

    Tiles 4 and 5 hold rows, the last ones always 5, tiles 6 and 7 columns. The sums of tile 5 are 0 to 3 where it is
    the only one; else 2 and 3, and those of tile 4 are 0 and 1.
    """
    made = np.zeros((2, TILE_ROWS + 1, 64), np.uint8)
    made[:, :, 0] = 1
    made[:, :, 16:32:2] = TILE_BYTES
    made[:, :, 48:56] = TILE_ROWS
    for rows in range(1, TILE_ROWS + 1):
        made[0, rows, [48, 49, 50, 51, 53]] = rows
        made[1, rows, [50, 51, 53]] = rows
    return made


CONFIGURATIONS = _configurations()


def _call(builder: ir.IRBuilder, name: str, *args: Any) -> None:
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(ir.VoidType(), [arg.type for arg in args]), name)
    builder.call(function, args)


def _load_tile(builder: ir.IRBuilder, tile: int, address: Any, stride: Any) -> None:
    pointer = builder.inttoptr(address, _I8.as_pointer())
    _call(builder, "llvm.x86.tileloadd64", _I8(tile), pointer, stride)


def _store_tile(builder: ir.IRBuilder, tile: int, address: Any, stride: Any) -> None:
    pointer = builder.inttoptr(address, _I8.as_pointer())
    _call(builder, "llvm.x86.tilestored64", _I8(tile), pointer, stride)


@intrinsic
def configure(typing, address):  # type: ignore[no-untyped-def]
    """Set the tiles up as the 64 bytes at ``address`` say."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: list[Any]) -> Any:
        _call(builder, "llvm.x86.ldtilecfg", builder.inttoptr(args[0], _I8.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def release(typing):  # type: ignore[no-untyped-def]
    """Leave the tiles, so that the system need not keep them."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: list[Any]) -> Any:
        _call(builder, "llvm.x86.tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


def _loop(builder: ir.IRBuilder, steps: Any, starts: list[Any], body: Callable[[list[Any]], list[Any]]) -> None:
    """``steps`` times, at least once; ``body`` takes the addresses and returns the next ones."""
    before = builder.block
    loop, after = builder.append_basic_block("amx.loop"), builder.append_basic_block("amx.after")
    builder.branch(loop)
    builder.position_at_end(loop)
    phis = [builder.phi(_I64) for _ in range(1 + len(starts))]
    for phi, start in zip(phis, [_I64(0), *starts], strict=True):
        phi.add_incoming(start, before)
    following = [builder.add(phis[0], _I64(1)), *body(phis[1:])]
    for phi, value in zip(phis, following, strict=True):
        phi.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", following[0], steps), loop, after)
    builder.position_at_end(after)


def _make(row_tiles: int, column_tiles: int) -> Any:
    """An intrinsic for the product of so many tiles of rows, the last one being tile 5, with so many of columns."""

    @intrinsic
    def tiles(typing, like, weights, a, a_stride, b, steps, c, c_stride):  # type: ignore[no-untyped-def]
        name = "llvm.x86.tdpbusd" if KIND_OF[like.dtype, weights.dtype] == "int8" else "llvm.x86.tdpbf16ps"

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: list[Any]) -> Any:
            _, _, a, a_stride, b, steps, c, c_stride = args
            for each in range(row_tiles * column_tiles):
                _call(builder, "llvm.x86.tilezero", _I8(each))

            def body(at: list[Any]) -> list[Any]:
                for row in range(row_tiles):
                    start = builder.add(at[0], builder.mul(a_stride, _I64(row * TILE_ROWS)))
                    _load_tile(builder, 5 if row == row_tiles - 1 else 4, start, a_stride)
                for column in range(column_tiles):
                    tile = 6 + column % 2
                    _load_tile(builder, tile, builder.add(at[1], _I64(column * TILE_BYTES)), _I64(_LINE))
                    for row in range(row_tiles):
                        rows = _I8(5 if row == row_tiles - 1 else 4)
                        _call(builder, name, _I8(row * column_tiles + column), rows, _I8(tile))
                return [builder.add(at[0], _I64(TILE_BYTES)), builder.add(at[1], _I64(WORDS * _LINE))]

            _loop(builder, steps, [a, b], body)
            for row in range(row_tiles):
                start = builder.add(c, builder.mul(c_stride, _I64(row * TILE_ROWS)))
                for column in range(column_tiles):
                    to = builder.add(start, _I64(column * TILE_BYTES))
                    _store_tile(builder, row * column_tiles + column, to, c_stride)
            return context.get_dummy_value()

        return types.void(like, weights, *[types.int64] * 6), generate

    return tiles


_one_by_four, _two_by_two = _make(1, 4), _make(2, 2)


@intrinsic
def _widen(typing, given, to, count):  # type: ignore[no-untyped-def]
    """So many times 32 int8 at ``given`` as bfloat16, which holds them exactly, to ``to``."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: list[Any]) -> Any:
        wide, half = ir.IntType(32), ir.IntType(16)

        def body(at: list[Any]) -> list[Any]:
            source = builder.inttoptr(at[0], ir.VectorType(_I8, 32).as_pointer())
            loaded = builder.load(source)
            loaded.align = 1
            floats = builder.sitofp(builder.sext(loaded, ir.VectorType(wide, 32)), ir.VectorType(ir.FloatType(), 32))
            bits = builder.bitcast(floats, ir.VectorType(half, 64))
            upper = ir.Constant(ir.VectorType(wide, 32), list(range(1, 64, 2)))
            halves = builder.shuffle_vector(bits, bits, upper)
            stored = builder.store(halves, builder.inttoptr(at[1], halves.type.as_pointer()))
            stored.align = 1
            return [builder.add(at[0], _I64(32)), builder.add(at[1], _I64(64))]

        _loop(builder, args[2], [args[0], args[1]], body)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate


@njit(nogil=True)
def tiled_product(operand, rows, weight, outputs, c):  # type: ignore[no-untyped-def]
    """`padserve_kernels.x86.products.product` of bfloat16 or bytes; a row has a multiple of 16 words."""
    a, a_stride = operand.ctypes.data, operand.strides[0]
    to, c_stride = c.ctypes.data, c.strides[0]
    words = a_stride // 4
    steps = words // WORDS
    wide = rows % 32 if rows % 32 <= 16 else 0  # rows that one tile holds
    paired = rows - wide
    configurations = CONFIGURATIONS.ctypes.data
    held = 0
    for panel in range(outputs // 64):
        columns, target = weight.ctypes.data + panel * words * _LINE, to + panel * _LINE
        for half in range(2):
            for row in range(0, paired, 32):
                count = min(rows - row, 32) - 16
                if held != 32 + count:
                    held = 32 + count
                    configure(configurations + (17 + count) * 64)
                at, there = a + row * a_stride, target + row * c_stride + half * 128
                _two_by_two(operand, weight, at, a_stride, columns + half * 128, steps, there, c_stride)
        if wide > 0:
            if held != wide:
                held = wide
                configure(configurations + wide * 64)
            at, there = a + paired * a_stride, target + paired * c_stride
            _one_by_four(operand, weight, at, a_stride, columns, steps, there, c_stride)
    release()


@njit(nogil=True)
def widened_product(operand, rows, weight, outputs, c):  # type: ignore[no-untyped-def]
    """The same of bfloat16 with int8 weights, a panel of which is made bfloat16 at a time."""
    words = operand.strides[0] // 4
    panel = np.empty(words * 128, np.uint16)
    for place in range(outputs // 64):
        _widen(weight.ctypes.data + place * words * 128, panel.ctypes.data, words * 4)
        tiled_product(operand, rows, panel, 64, c[:, place * 64 :])
