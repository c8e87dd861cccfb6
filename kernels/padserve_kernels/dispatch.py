"""Which implementation of an op runs."""

import importlib.util
import os

from torch import Tensor


def interpreting() -> bool:
    """Whether triton runs kernels in its interpreter, on CPU tensors (``TRITON_INTERPRET=1``)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def use_triton(tensor: Tensor) -> bool:
    """True on a GPU where triton is installed, and on a CPU under triton's interpreter."""
    return (tensor.is_cuda or interpreting()) and importlib.util.find_spec("triton") is not None
