"""What the processor has."""

import ctypes
import importlib.util
import sys
from functools import cache
from typing import Literal

Kind = Literal["float32", "bfloat16", "int8", "int8_weights"]
"""What a product multiplies: of the last one bfloat16 rows with int8 weights. Sums are float32, of int8 exact int32."""
Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
NEEDED: dict[Kind, tuple[str, ...]] = {
    "float32": ("avx512f", "avx512dq"),
    "bfloat16": ("avx512f", "avx512dq", "avx512bf16"),
    "int8": ("avx512f", "avx512dq", "avx512vnni"),
    "int8_weights": ("avx512f", "avx512dq", "avx512bf16"),
}


@cache
def supports(kind: Kind) -> bool:
    """Whether products of this kind can be compiled here: numba is installed, and the processor has what they need."""
    if kind not in NEEDED or sys.byteorder != "little" or importlib.util.find_spec("numba") is None:
        return False
    return _has(*NEEDED[kind])


TILES: dict[Kind, tuple[str, ...]] = {
    "bfloat16": ("amx-tile", "amx-bf16"),
    "int8": ("amx-tile", "amx-int8"),
    "int8_weights": ("amx-tile", "amx-bf16"),
}
TILE_WORDS = 16
"""32-bit words in a row of a tile register. Rows that are multiplied there have a multiple of it."""
_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18


@cache
def tiled(kind: Kind) -> bool:
    """Whether products of this kind, which `supports` must have, run in the processor's tile registers (AMX)."""
    return kind in TILES and sys.platform == "linux" and _has(*TILES[kind]) and _permitted()


@cache
def _permitted() -> bool:
    """Ask the system to let this process, all its threads, use tile registers."""
    try:
        return int(ctypes.CDLL(None).syscall(_PRCTL, _REQUEST, _TILE_DATA)) == 0
    except (OSError, AttributeError):
        return False


def _has(*names: str) -> bool:
    import llvmlite.binding

    features = llvmlite.binding.get_host_cpu_features()
    return all(features.get(name, False) for name in names)
