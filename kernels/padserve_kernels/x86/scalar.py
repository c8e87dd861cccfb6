"""Functions of one number that the compiler turns into vectors where they stand in a loop. All are float32."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",  # division by zero gives infinity, as in torch, and needs no branch
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},  # not nnan and ninf: what is not finite must stay so
}
HALF, ONE, LOG2_E = np.float32(0.5), np.float32(1.0), np.float32(1.4426950408889634)


@intrinsic
def bits_of(typing, x):  # type: ignore[no-untyped-def]
    """The bits of a float32, as an int32."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(args[0], ir.IntType(32))

    return types.int32(types.float32), generate


@intrinsic
def float_of(typing, x):  # type: ignore[no-untyped-def]
    """The float32 that has the bits of an int32."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def round_of(typing, x):  # type: ignore[no-untyped-def]
    """The nearest whole number, the even one of two."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        kind = ir.FloatType()
        name = "llvm.rint.f32"
        function = builder.module.globals.get(name)
        if function is None:
            function = ir.Function(builder.module, ir.FunctionType(kind, [kind]), name)
        return builder.call(function, args)

    return types.float32(types.float32), generate


@njit(inline="always", **OPTIONS)
def ordered(bits):  # type: ignore[no-untyped-def]
    """Integers in the order of the floats whose bits they are; its own inverse. NaN lies beyond infinity."""
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@njit(inline="always", **OPTIONS)
def exp2(x):  # type: ignore[no-untyped-def]
    """``2 ** x``, x counting as no less than -126 and no more than 127; within 2e-7 of it, relative. NaN stays NaN."""
    x = np.float32(-126.0) if x < np.float32(-126.0) else x
    x = np.float32(127.0) if x > np.float32(127.0) else x
    whole = round_of(x)
    z = x - whole
    p = np.float32(1.5403530393381608e-4)
    p = p * z + np.float32(1.3333558146428443e-3)
    p = p * z + np.float32(9.618129107628477e-3)
    p = p * z + np.float32(5.550410866482158e-2)
    p = p * z + np.float32(2.402265069591007e-1)
    p = p * z + np.float32(6.931471805599453e-1)
    p = p * z + ONE
    return p * float_of((np.int32(whole) + np.int32(127)) << np.int32(23))


@njit(inline="always", **OPTIONS)
def erf(x):  # type: ignore[no-untyped-def]
    """Rational, fitted by least squares, and one beyond 3.8; within 4e-7 everywhere."""
    z = x * x
    p = np.float32(2.132180621979917e-06)
    p = p * z + np.float32(0.0002879958044042823)
    p = p * z + np.float32(0.0036934161634433775)
    p = p * z + np.float32(0.05254674750020793)
    p = p * z + np.float32(0.1881114620627917)
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
def tanh(x):  # type: ignore[no-untyped-def]
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
    q = q * z + np.float32(0.0005138559698994351)
    q = q * z + np.float32(0.029435693809112026)
    q = q * z + np.float32(0.47482749699248916)
    q = q * z + ONE
    y = x * p / q
    y = ONE if x > np.float32(7.5) else y
    return -ONE if x < np.float32(-7.5) else y
