"""The definition of residual layer norm: test oracle, and what runs where no kernel does."""

from torch import Tensor


def residual_layer_norm_reference(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """See `padserve_kernels.residual_layer_norm.residual_layer_norm`. All in float32."""
    total = x.float() + residual.float()
    centred = total - total.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return (centred * (variance + eps).rsqrt() * weight.float() + bias.float()).to(x.dtype)
