"""A post-LayerNorm encoder as one compiled call, where the processor has what that needs.

It does what `padserve.models.fused.FusedEncoder` does: the fused one runs elsewhere, and for attention with a bias.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import nn

from padserve.core import Batch, Int64Array, Output
from padserve.models.fused import Embed, PlainAttention, StockLayer
from padserve.models.heads import HeadRunner
from padserve.models.int8 import Int8Encoder
from padserve.models.linear import FusedActivation
from padserve.models.positions import offset_positions
from padserve_kernels.post_norm_encoder import (
    Embeddings,
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
    from padserve_kernels.post_norm_encoder.compiled import Tokens

KINDS: dict[torch.dtype, Kind] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class CompiledEncoder:
    """See `padserve.models.fused.FusedEncoder`. Hidden states between layers are float32, and so is the result."""

    def __init__(self, embed: Embed, kernel: "Kernel") -> None:
        self.embed, self._kernel = embed, kernel

    def run(self, batch: Batch, positions: Int64Array, wanted: Int64Array | None, means: bool) -> Output:
        """Float32 ``[rows, hidden]``: of ``wanted`` rows, None for all, or with ``means`` one of each sequence."""
        if self._kernel.takes_tokens:
            return self._kernel(self._tokens(batch, positions), batch.cu_seqlens, wanted, means)
        return self._kernel(self._embedded(batch, positions), batch.cu_seqlens, wanted, means)

    @torch.inference_mode()
    def _embedded(self, batch: Batch, positions: Int64Array) -> Output:
        """Each sequence by itself: a product of torch depends, in its last bits, on how many rows it has."""
        types = batch.token_type_ids
        parts = [
            self.embed(
                torch.from_numpy(batch.input_ids[start:stop]),
                torch.from_numpy(positions[start:stop]),
                None if types is None else torch.from_numpy(types[start:stop]),
            )
            for start, stop in pairwise(batch.cu_seqlens)
        ]
        embedded: Output = torch.cat(parts).float().numpy()
        return embedded

    def _tokens(self, batch: Batch, positions: Int64Array) -> "Tokens":
        from padserve_kernels.post_norm_encoder.compiled import Tokens

        return Tokens(batch.input_ids, positions, batch.token_type_ids)


class CompiledRunner:
    """A batch in one call, with no tensors of torch but where the head needs them."""

    def __init__(self, kind: str, encoder: CompiledEncoder, head: HeadRunner, offset: int) -> None:
        self.kind, self.encoder, self.head, self.offset = kind, encoder, head, offset

    def run(self, batch: Batch) -> list[Output]:
        positions = offset_positions(batch, self.offset)
        if self.head.takes_means(batch):
            return self.head.run_means(self.encoder.run(batch, positions, None, means=True))
        hidden = self.encoder.run(batch, positions, self.head.rows(batch), means=False)
        with torch.inference_mode():
            return self.head.run(torch.from_numpy(hidden), batch)


def compile_layers(
    embed: Embed,
    tables: Embeddings | None,
    layers: Sequence[StockLayer],
    num_heads: int,
    activation: FusedActivation,
) -> CompiledEncoder:
    """Of stock layers in float32 or bfloat16, with plain attention. ``tables``: what ``embed`` does, where it is just
    that.

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
    return CompiledEncoder(embed, compile_encoder(EncoderWeights(kind, made, num_heads, activation, tables)))


def compile_int8(encoder: Int8Encoder, tables: Embeddings | None) -> CompiledEncoder | None:
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
    weights = EncoderWeights("int8", made, first.num_heads, first.activation, tables)
    return CompiledEncoder(encoder.embed, compile_encoder(weights))


def _weight(*linears: nn.Linear) -> Weight:
    biases = [
        linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias.detach()
        for linear in linears
    ]
    return Weight(torch.cat([linear.weight.detach() for linear in linears]), torch.cat(biases))


def tables_of(embeddings: nn.Module) -> Embeddings | None:
    """Of a module that adds the rows of its tables and norms the sum, as BERT's does; None for any other."""
    words, positions = (getattr(embeddings, name, None) for name in ("word_embeddings", "position_embeddings"))
    types, norm = getattr(embeddings, "token_type_embeddings", None), getattr(embeddings, "LayerNorm", None)
    known = {"word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm", "dropout"}
    plain = all(type(table) is nn.Embedding for table in (words, positions, types) if table is not None)
    others = {name for name, _ in embeddings.named_children()} - known
    if words is None or positions is None or type(norm) is not nn.LayerNorm or not plain or others:
        return None
    weight = None if types is None else types.weight
    return Embeddings(words.weight, positions.weight, weight, _norm(norm))


def _norm(norm: nn.LayerNorm) -> Norm:
    return Norm(norm.weight.detach(), norm.bias.detach(), norm.eps)
