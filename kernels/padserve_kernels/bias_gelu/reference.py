"""The definition of bias and GELU: test oracle, and what runs where no kernel does."""

import math

from torch import Tensor


def bias_gelu_reference(x: Tensor, bias: Tensor, tanh: bool = False) -> Tensor:
    """See `padserve_kernels.bias_gelu.bias_gelu`. All in float32."""
    u = x.float() + bias.float()
    inner = math.sqrt(2 / math.pi) * (u + 0.044715 * u**3) if tanh else math.sqrt(0.5) * u
    gate = inner.tanh() if tanh else inner.erf()
    return (u * (1 + gate) / 2).to(x.dtype)
