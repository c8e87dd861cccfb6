"""Encoder-decoders with BART's layers: BART, Marian, mBART, M2M100, NLLB, Pegasus.

They differ in where LayerNorm stands (after each block in BART and Marian, before it in the others), in their position
tables, and in a LayerNorm of the embeddings. Weights are the stock modules' own, packed for the processor.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from padserve.attention.packed import packed_attention
from padserve.models.generators.base import Scores, Source, Step, TorchStored, look_at_sources
from padserve.models.linear import PackedLinear

NORM_AFTER = frozenset({"bart", "marian"})
TYPES = frozenset({"bart", "marian", "mbart", "m2m_100", "pegasus"})


class BartGenerator(TorchStored):
    """``model``: the stock model for conditional generation, in evaluation mode, on the CPU."""

    def __init__(self, model: Any) -> None:
        config, base = model.config, model.model
        self.num_layers = config.decoder_layers
        self.vocab_size = int(model.lm_head.out_features)
        self.window = int(config.max_position_embeddings)
        self.token_bytes = 2 * self.num_layers * config.d_model * model.dtype.itemsize
        after = config.model_type in NORM_AFTER
        self._source_encoder = SourceEncoder(model)
        self._embed = embedding_of(base.decoder, config)
        self._decoder = [_DecoderLayer(layer, config, after) for layer in base.decoder.layers]
        self._decoder_norm = getattr(base.decoder, "layer_norm", None)
        bias = model.final_logits_bias[0] if hasattr(model, "final_logits_bias") else None
        head = nn.Linear(model.lm_head.in_features, self.vocab_size, bias=bias is not None)
        head.weight = model.lm_head.weight
        if bias is not None:
            head.bias = nn.Parameter(bias.to(head.weight.dtype), requires_grad=False)
        self._head = PackedLinear.of(head)

    @torch.inference_mode()
    def encode(self, sources: Sequence[Sequence[int]]) -> list[Source]:
        hidden, lengths = self._source_encoder(sources)
        kept = [torch.split(layer.keep(hidden), list(lengths), 2) for layer in self._decoder]
        return [
            Source(tuple((both[i][0:1], both[i][1:2]) for both in kept), length) for i, length in enumerate(lengths)
        ]

    @torch.inference_mode()
    def step(self, step: Step) -> Scores:
        hidden = self._embed(step.input_ids, step.positions)
        for index, layer in enumerate(self._decoder):
            hidden = layer(hidden, index, step)
        hidden = hidden[step.wanted]
        if self._decoder_norm is not None:
            hidden = self._decoder_norm(hidden)
        logits: Tensor = self._head(hidden)
        return Scores.of(logits.float())


class SourceEncoder:
    """Source texts in one packed stream -> hidden states ``[total_tokens, hidden]``, and the lengths."""

    def __init__(self, model: Any) -> None:
        config, encoder = model.config, model.model.encoder
        self._embed = embedding_of(encoder, config)
        self._layers = [_EncoderLayer(layer, config, config.model_type in NORM_AFTER) for layer in encoder.layers]
        self._norm = getattr(encoder, "layer_norm", None)

    def __call__(self, sources: Sequence[Sequence[int]]) -> tuple[Tensor, tuple[int, ...]]:
        lengths = tuple(len(source) for source in sources)
        ids = torch.tensor([token for source in sources for token in source])
        hidden = self._embed(ids, torch.cat([torch.arange(length) for length in lengths]))
        for layer in self._layers:
            hidden = layer(hidden, lengths)
        return (hidden if self._norm is None else self._norm(hidden)), lengths


def embedding_of(stack: Any, config: Any) -> "_Embedding":
    """Of a stock encoder or decoder: (ids, positions) -> hidden states."""
    return _Embedding(stack, config)


class _Embedding:
    """Tokens and positions, each ``[rows]`` -> ``[rows, hidden]``."""

    def __init__(self, stack: Any, config: Any) -> None:
        self._tokens = stack.embed_tokens
        self._scale = float(getattr(stack, "embed_scale", 1.0))
        if hasattr(self._tokens, "embed_scale"):
            self._scale = 1.0  # the module scales by itself
        table = stack.embed_positions
        if config.model_type == "m2m_100":
            self._table, self._offset = table.weights.to(self._tokens.weight.dtype), table.padding_idx + 1
        else:
            self._table, self._offset = table.weight, int(getattr(table, "offset", 0))
        self._norm = getattr(stack, "layernorm_embedding", None)

    def __call__(self, ids: Tensor, positions: Tensor) -> Tensor:
        hidden: Tensor = self._tokens(ids) * self._scale + self._table[positions + self._offset]
        return hidden if self._norm is None else self._norm(hidden)


class _FeedForward:
    def __init__(self, layer: Any, after: bool) -> None:
        self._up, self._down = PackedLinear.of(layer.fc1), PackedLinear.of(layer.fc2)
        self._activation, self._norm, self._after = layer.activation_fn, layer.final_layer_norm, after

    def __call__(self, hidden: Tensor) -> Tensor:
        given = hidden if self._after else self._norm(hidden)
        hidden = self._down.add(self._activation(self._up(given)), hidden)
        return self._norm(hidden) if self._after else hidden


class _EncoderLayer:
    def __init__(self, layer: Any, config: Any, after: bool) -> None:
        own = layer.self_attn
        self._qkv, self._out = PackedLinear.fused(own.q_proj, own.k_proj, own.v_proj), PackedLinear.of(own.out_proj)
        self._heads, self._scale = config.encoder_attention_heads, own.scaling
        self._norm, self._after = layer.self_attn_layer_norm, after
        self._forward = _FeedForward(layer, after)

    def __call__(self, hidden: Tensor, lengths: tuple[int, ...]) -> Tensor:
        total = len(hidden)
        given = hidden if self._after else self._norm(hidden)
        query, key, value = self._qkv(given).view(1, total, 3, self._heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        context = packed_attention(query, key, value, lengths, self._scale).reshape(total, -1)
        hidden = self._out.add(context, hidden)
        return self._forward(self._norm(hidden) if self._after else hidden)


class _DecoderLayer:
    def __init__(self, layer: Any, config: Any, after: bool) -> None:
        own, cross = layer.self_attn, layer.encoder_attn
        self._qkv, self._out = PackedLinear.fused(own.q_proj, own.k_proj, own.v_proj), PackedLinear.of(own.out_proj)
        self._cross_query, self._cross_out = PackedLinear.of(cross.q_proj), PackedLinear.of(cross.out_proj)
        self._cross_kept = PackedLinear.fused(cross.k_proj, cross.v_proj)
        self._heads, self._scale, self._cross_scale = config.decoder_attention_heads, own.scaling, cross.scaling
        self._norm, self._cross_norm, self._after = layer.self_attn_layer_norm, layer.encoder_attn_layer_norm, after
        self._forward = _FeedForward(layer, after)

    def keep(self, encoded: Tensor) -> Tensor:
        """Keys and values of the source, ``[2, num_heads, length, head_dim]``."""
        kept: Tensor = self._cross_kept(encoded)
        return kept.view(len(encoded), 2, self._heads, -1).permute(1, 2, 0, 3)

    def __call__(self, hidden: Tensor, index: int, step: Step) -> Tensor:
        rows = len(hidden)
        given = hidden if self._after else self._norm(hidden)
        query, key, value = self._qkv(given).view(rows, 3, self._heads, -1).unbind(1)
        context = step.attention.attend(index, query, key, value, self._scale)
        hidden = self._out.add(context.reshape(rows, -1), hidden)
        if self._after:
            hidden = self._norm(hidden)
        given = hidden if self._after else self._cross_norm(hidden)
        query = self._cross_query(given).view(rows, self._heads, -1)
        context = look_at_sources(query, index, step.sources, self._cross_scale)
        hidden = self._cross_out.add(context.reshape(rows, -1), hidden)
        return self._forward(self._cross_norm(hidden) if self._after else hidden)
