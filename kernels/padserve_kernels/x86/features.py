"""What the processor has."""

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
    import llvmlite.binding

    features = llvmlite.binding.get_host_cpu_features()
    return all(features.get(name, False) for name in NEEDED[kind])
