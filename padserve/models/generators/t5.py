"""T5, FLAN-T5, mT5, ByT5 and UMT5: positions by a bias on distances alone, one direction in the decoder."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from padserve.attention.cached import Bias
from padserve.models.families.t5 import FAMILY
from padserve.models.generators.base import Scores, Source, Step, TorchStored, look_at_sources
from padserve.models.linear import PackedLinear

TYPES = frozenset({"t5", "mt5", "umt5"})


class T5Generator(TorchStored):
    """``model``: the stock model for conditional generation, in evaluation mode, on the CPU."""

    window = None

    def __init__(self, model: Any) -> None:
        config = model.config
        self.num_layers = config.num_decoder_layers
        self.vocab_size = int(model.lm_head.out_features)
        self.token_bytes = 2 * self.num_layers * config.num_heads * config.d_kv * model.dtype.itemsize
        self._source_encoder = T5SourceEncoder(model)
        self._embed = model.decoder.embed_tokens
        self._layers = [_DecoderLayer(block, config) for block in model.decoder.block]
        first = self._layers[0].bias
        for layer in self._layers:
            layer.bias = layer.bias or first
        self._norm = model.decoder.final_layer_norm
        self._scale = config.d_model**-0.5 if getattr(config, "scale_decoder_outputs", False) else 1.0
        self._head = PackedLinear.of(model.lm_head)

    @torch.inference_mode()
    def encode(self, sources: Sequence[Sequence[int]]) -> list[Source]:
        encoded, lengths = self._source_encoder(sources)
        kept = [torch.split(layer.keep(encoded), list(lengths), 2) for layer in self._layers]
        return [
            Source(tuple((both[i][0:1], both[i][1:2]) for both in kept), length) for i, length in enumerate(lengths)
        ]

    @torch.inference_mode()
    def step(self, step: Step) -> Scores:
        hidden: Tensor = self._embed(step.input_ids)
        for index, layer in enumerate(self._layers):
            hidden = layer(hidden, index, step)
        logits: Tensor = self._head(self._norm(hidden[step.wanted]) * self._scale)
        return Scores.of(logits.float())


class T5SourceEncoder:
    """Source texts in one packed stream -> hidden states ``[total_tokens, hidden]``, and the lengths."""

    def __init__(self, model: Any) -> None:
        self._encoder = FAMILY.stack_encoder(model.encoder)

    def __call__(self, sources: Sequence[Sequence[int]]) -> tuple[Tensor, tuple[int, ...]]:
        lengths = tuple(len(source) for source in sources)
        ids = torch.tensor([token for source in sources for token in source])
        return self._encoder(ids, ids, None, lengths, None), lengths


class _DecoderLayer:
    def __init__(self, block: Any, config: Any) -> None:
        own, cross = block.layer[0].SelfAttention, block.layer[1].EncDecAttention
        self._norm, self._cross_norm, self._forward = (
            block.layer[0].layer_norm,
            block.layer[1].layer_norm,
            block.layer[2],
        )
        self._qkv, self._out = PackedLinear.fused(own.q, own.k, own.v), PackedLinear.of(own.o)
        self._cross_query, self._cross_out = PackedLinear.of(cross.q), PackedLinear.of(cross.o)
        self._cross_kept = PackedLinear.fused(cross.k, cross.v)
        self._heads, self._scale = own.n_heads, own.scaling
        self.bias: Bias | None = distance_bias(own, config) if own.has_relative_attention_bias else None

    def keep(self, encoded: Tensor) -> Tensor:
        """Keys and values of the source, ``[2, num_heads, length, head_dim]``."""
        kept: Tensor = self._cross_kept(encoded)
        return kept.view(len(encoded), 2, self._heads, -1).permute(1, 2, 0, 3)

    def __call__(self, hidden: Tensor, index: int, step: Step) -> Tensor:
        rows = len(hidden)
        query, key, value = self._qkv(self._norm(hidden)).view(rows, 3, self._heads, -1).unbind(1)
        context = step.attention.attend(index, query, key, value, self._scale, bias=self.bias)
        hidden = self._out.add(context.reshape(rows, -1), hidden)
        query = self._cross_query(self._cross_norm(hidden)).view(rows, self._heads, -1)
        context = look_at_sources(query, index, step.sources, self._scale)
        hidden = self._cross_out.add(context.reshape(rows, -1), hidden)
        output: Tensor = self._forward(hidden)
        return output


def distance_table(own: Any, config: Any) -> Tensor:
    """The decoder's bias by how far back a key lies, ``[distances, num_heads]``; farther keys share the last one's.

    ``own``: the stock attention that has the table.
    """
    length = config.relative_attention_max_distance + 1
    with torch.inference_mode():
        bias: Tensor = own.compute_bias(1, length, past_seen_tokens=length - 1)
    return bias[0, :, 0].flip(1).T.contiguous()


def distance_bias(own: Any, config: Any) -> Bias:
    table = distance_table(own, config)
    farthest = len(table) - 1

    def bias(queries: Tensor, keys: Tensor) -> Tensor:
        distance = (queries[:, :, None] - keys[:, None]).clamp(0, farthest)
        return table[distance].permute(0, 3, 1, 2)

    return bias
