"""Products of a few rows with a few vectors of columns, kept in registers, as LLVM code inside compiled functions.

The sum over ``words`` runs in order in every tile, so that a row's result is the same bits in whatever tile it was.
"""

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from padserve_kernels.x86.features import Kind

LANES = 16
"""32-bit lanes of a vector."""
VECTOR_BYTES = 64
ROWS, VECTORS = 6, 4
"""Of the largest tile: 24 sums, 4 vectors of columns and one of rows fit 32 registers."""


class _BFloat(ir.Type):  # type: ignore[misc]
    """llvmlite has no bfloat."""

    intrinsic_name = "bf16"

    def __str__(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
_INTS, _FLOATS = ir.VectorType(_I32, LANES), ir.VectorType(_F32, LANES)
_BYTES, _PAIRS = ir.VectorType(ir.IntType(8), 4 * LANES), ir.VectorType(ir.IntType(8), 2 * LANES)
_HALVES = ir.VectorType(_BFloat(), 2 * LANES)


KIND_OF: dict[Any, Kind] = {
    (types.float32, types.float32): "float32",
    (types.uint16, types.uint16): "bfloat16",
    (types.uint8, types.int8): "int8",
    (types.uint16, types.int8): "int8_weights",
}
"""By the types of the elements of rows and weights."""


@intrinsic
def _tiles(typing, like, weights, rows, vectors, a, a_stride, b, b_stride, words, c, c_stride):  # type: ignore[no-untyped-def]
    kind = KIND_OF[like.dtype, weights.dtype]

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: list[Any]) -> Any:
        _, _, rows, vectors, *rest = args
        end = builder.append_basic_block("tiles.end")
        choice = builder.add(builder.mul(rows, _I64(VECTORS)), vectors)
        switch = builder.switch(choice, end)
        for count in range(1, ROWS + 1):
            for width in range(1, VECTORS + 1):
                block = builder.append_basic_block(f"tile.{count}.{width}")
                switch.add_case(_I64(count * VECTORS + width), block)
                builder.position_at_end(block)
                _tile(kind, count, width, builder, rest)
                builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return types.void(like, weights, *[types.int64] * 9), generate


@njit(nogil=True)
def small_product(like, weights, rows, vectors, a, a_stride, b, b_stride, words, c, c_stride):  # type: ignore[no-untyped-def]
    """``c = a @ b`` for compiled functions, of at most `ROWS` rows and `VECTORS` vectors of columns.

    ``like``, ``weights``: arrays whose element types say what is multiplied, see `KIND_OF`; of bfloat16 the bits.
    Addresses and strides are in bytes. ``a``: ``[rows, words]`` 32-bit words. ``b``: ``[words, columns]`` words of a
    column each, 16-bit ones of int8 weights for bfloat16. ``c``: ``[rows, columns]`` float32, int32 of bytes; columns
    are 16 a vector. ``words`` is at least 1.
    """
    _tiles(like, weights, rows, vectors, a, a_stride, b, b_stride, words, c, c_stride)


def _tile(kind: Kind, rows: int, vectors: int, builder: ir.IRBuilder, args: list[Any]) -> None:
    a, a_stride, b, b_stride, words, c, c_stride = args
    sums, word = (_INTS if kind == "int8" else _FLOATS), (_F32 if kind == "float32" else _I32)
    vector = ir.VectorType(word, LANES)
    before = builder.block
    loop, after = builder.append_basic_block("tile.loop"), builder.append_basic_block("tile.after")
    builder.branch(loop)
    builder.position_at_end(loop)
    done, a_at, b_at = (_phi(builder, _I64, start, before) for start in (_I64(0), a, b))
    old = [_phi(builder, sums, ir.Constant(sums, None), before) for _ in range(rows * vectors)]
    columns = [_column(kind, builder, b_at, place, vector) for place in range(vectors)]
    new = []
    for index, address in enumerate(_rows(builder, a_at, a_stride, rows)):
        given = _spread(builder, _load(builder, address, word), vector)
        for place, column in enumerate(columns):
            new.append(_multiply_add(kind, builder, old[index * vectors + place], given, column))
    following = (builder.add(done, _I64(1)), builder.add(a_at, _I64(4)), builder.add(b_at, b_stride))
    for phi, value in zip([done, a_at, b_at, *old], [*following, *new], strict=True):
        phi.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", following[0], words), loop, after)
    builder.position_at_end(after)
    for index, address in enumerate(_rows(builder, c, c_stride, rows)):
        for place in range(vectors):
            _store(builder, new[index * vectors + place], builder.add(address, _I64(VECTOR_BYTES * place)))


def _column(kind: Kind, builder: ir.IRBuilder, address: Any, place: int, vector: ir.VectorType) -> Any:
    """A vector of a weight's columns. Of int8 weights two bytes a lane, which bfloat16 holds exactly."""
    if kind != "int8_weights":
        return _load(builder, builder.add(address, _I64(VECTOR_BYTES * place)), vector)
    given = _load(builder, builder.add(address, _I64(VECTOR_BYTES // 2 * place)), _PAIRS)
    floats = builder.sitofp(builder.sext(given, ir.VectorType(_I32, 2 * LANES)), ir.VectorType(_F32, 2 * LANES))
    return builder.bitcast(builder.fptrunc(floats, _HALVES), vector)


def _rows(builder: ir.IRBuilder, start: Any, stride: Any, count: int) -> list[Any]:
    """Addresses of rows."""
    addresses = [start]
    for _ in range(count - 1):
        addresses.append(builder.add(addresses[-1], stride))
    return addresses


def _store(builder: ir.IRBuilder, value: Any, address: Any) -> None:
    stored = builder.store(value, builder.inttoptr(address, value.type.as_pointer()))
    stored.align = 4


def _phi(builder: ir.IRBuilder, kind: ir.Type, start: Any, before: Any) -> Any:
    phi = builder.phi(kind)
    phi.add_incoming(start, before)
    return phi


def _load(builder: ir.IRBuilder, address: Any, kind: ir.Type) -> Any:
    loaded = builder.load(builder.inttoptr(address, kind.as_pointer()))
    loaded.align = 4
    return loaded


def _spread(builder: ir.IRBuilder, word: Any, vector: ir.VectorType) -> Any:
    empty = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(empty, word, _I32(0))
    return builder.shuffle_vector(one, empty, ir.Constant(_INTS, [0] * LANES))


def _multiply_add(kind: Kind, builder: ir.IRBuilder, sums: Any, row: Any, column: Any) -> Any:
    if kind == "float32":
        name, args = "llvm.fma.v16f32", [row, column, sums]
    elif kind in ("bfloat16", "int8_weights"):
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        args = [sums, builder.bitcast(row, _HALVES), builder.bitcast(column, _HALVES)]
    else:
        name = "llvm.x86.avx512.vpdpbusd.512"
        args = [sums, builder.bitcast(row, _BYTES), builder.bitcast(column, _BYTES)]
    function = builder.module.globals.get(name)
    if function is None:
        signature = ir.FunctionType(sums.type, [arg.type for arg in args])
        function = ir.Function(builder.module, signature, name)
    return builder.call(function, args)
