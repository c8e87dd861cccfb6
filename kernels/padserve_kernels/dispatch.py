"""Which implementation of an op runs."""

import importlib.util
import os
from functools import cache

from torch import Tensor


def interpreting() -> bool:
    """Whether triton runs kernels in its interpreter, on CPU tensors (``TRITON_INTERPRET=1``)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def use_triton(tensor: Tensor) -> bool:
    """True on a GPU where triton is installed, and on a CPU under triton's interpreter."""
    return (tensor.is_cuda or interpreting()) and _installed("triton")


def use_numba(tensor: Tensor) -> bool:
    """True on a CPU where numba is installed."""
    return tensor.device.type == "cpu" and _installed("numba")


@cache
def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
