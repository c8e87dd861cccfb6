"""A post-LayerNorm encoder as one compiled call, where the processor has what that needs.

It does what `padserve.models.fused.FusedEncoder` does: the fused one runs elsewhere, and for attention with a bias.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from padserve.models.fused import Embed, FusedActivation, PlainAttention, StockLayer
from padserve.models.int8 import Int8Encoder
from padserve_kernels.post_norm_encoder import (
    EncoderWeights,
    Kind,
    LayerWeights,
    Norm,
    Weight,
    can_compile,
    compile_encoder,
)

if TYPE_CHECKING:
    from padserve_kernels.post_norm_encoder.compiled import CompiledEncoder as Kernel

KINDS: dict[torch.dtype, Kind] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class CompiledEncoder:
    """See `padserve.models.fused.FusedEncoder`. Hidden states between layers are float32, and so is the result."""

    def __init__(self, embed: Embed, kernel: "Kernel") -> None:
        self.embed, self._kernel = embed, kernel

    def __call__(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        token_type_ids: Tensor | None,
        lengths: tuple[int, ...],
        wanted: Tensor | None = None,
    ) -> Tensor:
        return self._kernel(self.embed(input_ids, position_ids, token_type_ids), lengths, wanted)


def compile_layers(
    embed: Embed, layers: Sequence[StockLayer], num_heads: int, activation: FusedActivation
) -> CompiledEncoder:
    """Of stock layers in float32 or bfloat16, with plain attention.

    Errors: `NotImplementedError` where this processor, or the kernel, lacks something.
    """
    weight = layers[0].query.weight
    kind = KINDS.get(weight.dtype)
    if kind is None or weight.device.type != "cpu" or not can_compile(kind):
        raise NotImplementedError("this processor has no instructions for compiled encoders")
    if activation not in ("gelu", "gelu_tanh", "relu"):
        raise NotImplementedError(f"compiled encoders have no {activation}")
    made = tuple(
        LayerWeights(
            qkv=_weight(layer.query, layer.key, layer.value),
            output=_weight(layer.output),
            up=_weight(layer.up),
            down=_weight(layer.down),
            attention_norm=_norm(layer.attention_norm),
            output_norm=_norm(layer.output_norm),
        )
        for layer in layers
    )
    return CompiledEncoder(embed, compile_encoder(EncoderWeights(kind, made, num_heads, activation)))


def compile_int8(encoder: Int8Encoder) -> CompiledEncoder | None:
    """The same encoder compiled; None where it cannot be."""
    plain = all(isinstance(layer.attend, PlainAttention) for layer in encoder.layers)
    if not plain or encoder.after_first is not None or not can_compile("int8"):
        return None
    made = tuple(
        LayerWeights(
            qkv=layer.qkv,
            output=layer.output,
            up=layer.up,
            down=layer.down,
            attention_norm=_norm(layer.attention_norm),
            output_norm=_norm(layer.output_norm),
        )
        for layer in encoder.layers
    )
    first = encoder.layers[0]
    return CompiledEncoder(
        encoder.embed, compile_encoder(EncoderWeights("int8", made, first.num_heads, first.activation))
    )


def _weight(*linears: nn.Linear) -> Weight:
    biases = [
        linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias.detach()
        for linear in linears
    ]
    return Weight(torch.cat([linear.weight.detach() for linear in linears]), torch.cat(biases))


def _norm(norm: nn.LayerNorm) -> Norm:
    return Norm(norm.weight.detach(), norm.bias.detach(), norm.eps)
