"""What of a stock model the compiled decoder is made of, by family.

Errors of all functions: `NotImplementedError` where this checkpoint, or this processor, has something that the compiled
decoder lacks.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from padserve.models.fused import ACTIVATIONS
from padserve.models.generators.bart import NORM_AFTER, SourceEncoder, embedding_of
from padserve.models.generators.compiled import CompiledGenerator
from padserve.models.generators.t5 import T5SourceEncoder, distance_table
from padserve.models.linear import PackedLinear
from padserve_kernels.decoder import CrossWeights, DecoderLayerWeights, DecoderWeights, Kind, Norm, Weight, can_compile
from padserve_kernels.decoder.layout import AnyWeight

Weigh = Callable[..., AnyWeight]
"""Layers over the same input -> one weight."""
KINDS: dict[torch.dtype, Kind] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
LLAMAS = frozenset({"llama", "mistral", "qwen2"})
NAMES: dict[str, Any] = {**ACTIVATIONS, "silu": "silu", "swish": "silu"}


def compile_llama(model: Any, kind: Kind, weigh: Weigh) -> CompiledGenerator:
    """RMSNorm first, rotated positions, gated feed-forward."""
    config, base = model.config, model.model
    reach = getattr(config, "sliding_window", None)
    if reach is not None and reach < config.max_position_embeddings:
        raise NotImplementedError("the compiled decoder has no sliding window")
    layers = tuple(
        DecoderLayerWeights(
            qkv=weigh(layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj),
            output=weigh(layer.self_attn.o_proj),
            up=weigh(layer.mlp.gate_proj, layer.mlp.up_proj),
            down=weigh(layer.mlp.down_proj),
            attention_norm=_rms(layer.input_layernorm),
            feed_norm=_rms(layer.post_attention_layernorm),
        )
        for layer in base.layers
    )
    own = base.layers[0].self_attn
    weights = DecoderWeights(
        kind=kind,
        layers=layers,
        head=weigh(model.lm_head),
        norm=_rms(base.norm),
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=own.head_dim,
        scale=own.scaling,
        activation=_activation(config.hidden_act),
        gated=True,
        norm_first=True,
        rms=True,
    )
    nothing = torch.zeros(1, 1, 1)

    def turn(positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = base.rotary_emb(nothing, positions[None])
        return cos[0], sin[0]

    window = int(config.max_position_embeddings)
    return CompiledGenerator(weights, lambda ids, _: base.embed_tokens(ids), window, turn)


def compile_bart(model: Any, kind: Kind, weigh: Weigh) -> CompiledGenerator:
    """LayerNorm first or after, learned or fixed positions, a source: BART, Marian, mBART, M2M100, Pegasus."""
    config, decoder = model.config, model.model.decoder
    first = config.model_type not in NORM_AFTER
    layers = tuple(
        DecoderLayerWeights(
            qkv=weigh(layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj),
            output=weigh(layer.self_attn.out_proj),
            up=weigh(layer.fc1),
            down=weigh(layer.fc2),
            attention_norm=_norm(layer.self_attn_layer_norm),
            feed_norm=_norm(layer.final_layer_norm),
            cross=CrossWeights(
                weigh(layer.encoder_attn.q_proj),
                weigh(layer.encoder_attn.out_proj),
                _norm(layer.encoder_attn_layer_norm),
            ),
        )
        for layer in decoder.layers
    )
    own, head = decoder.layers[0], weigh(model.lm_head)
    if hasattr(model, "final_logits_bias"):
        head = replace(head, bias=model.final_logits_bias[0].detach())
    last = getattr(decoder, "layer_norm", None)
    heads = config.decoder_attention_heads
    weights = DecoderWeights(
        kind=kind,
        layers=layers,
        head=head,
        norm=None if last is None else _norm(last),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=own.self_attn.head_dim,
        scale=own.self_attn.scaling,
        cross_scale=own.encoder_attn.scaling,
        activation=_activation(config.activation_function),
        gated=False,
        norm_first=first,
        rms=False,
    )
    keep = [_keeps(layer.encoder_attn.k_proj, layer.encoder_attn.v_proj, heads) for layer in decoder.layers]
    window = int(config.max_position_embeddings)
    return CompiledGenerator(weights, embedding_of(decoder, config), window, None, SourceEncoder(model), keep)


def compile_t5(model: Any, kind: Kind, weigh: Weigh) -> CompiledGenerator:
    """RMSNorm first, a bias by distance that all layers share, no scale, a source: T5, FLAN-T5, mT5, ByT5."""
    config, decoder = model.config, model.decoder
    blocks = [block.layer for block in decoder.block]
    if any(block[0].SelfAttention.has_relative_attention_bias for block in blocks[1:]):
        raise NotImplementedError("the compiled decoder has one bias by distance for all layers")
    forwards = [block[2].DenseReluDense for block in blocks]
    gated = hasattr(forwards[0], "wi_0")
    layers = tuple(
        DecoderLayerWeights(
            qkv=weigh(block[0].SelfAttention.q, block[0].SelfAttention.k, block[0].SelfAttention.v),
            output=weigh(block[0].SelfAttention.o),
            up=weigh(forward.wi_0, forward.wi_1) if gated else weigh(forward.wi),
            down=weigh(forward.wo),
            attention_norm=_rms(block[0].layer_norm),
            feed_norm=_rms(block[2].layer_norm),
            cross=CrossWeights(
                weigh(block[1].EncDecAttention.q), weigh(block[1].EncDecAttention.o), _rms(block[1].layer_norm)
            ),
        )
        for block, forward in zip(blocks, forwards, strict=True)
    )
    own, cross = blocks[0][0].SelfAttention, blocks[0][1].EncDecAttention
    scaled = getattr(config, "scale_decoder_outputs", False)
    weights = DecoderWeights(
        kind=kind,
        layers=layers,
        head=weigh(model.lm_head),
        norm=_rms(decoder.final_layer_norm, config.d_model**-0.5 if scaled else 1.0),
        num_heads=own.n_heads,
        num_kv_heads=own.n_heads,
        head_dim=own.key_value_proj_dim,
        scale=own.scaling,
        cross_scale=cross.scaling,
        activation=_activation(config.dense_act_fn),
        gated=gated,
        norm_first=True,
        rms=True,
        bias=distance_table(own, config).T,
    )
    keep = [_keeps(block[1].EncDecAttention.k, block[1].EncDecAttention.v, own.n_heads) for block in blocks]
    embed = decoder.embed_tokens
    return CompiledGenerator(weights, lambda ids, _: embed(ids), None, None, T5SourceEncoder(model), keep)


COMPILED: dict[str, Callable[[Any, Kind, Weigh], CompiledGenerator]] = {
    **dict.fromkeys(LLAMAS, compile_llama),
    **dict.fromkeys(("bart", "marian", "mbart", "m2m_100", "pegasus"), compile_bart),
    **dict.fromkeys(("t5", "mt5"), compile_t5),
}


def compile_generator(model: Any, weigh: Weigh | None = None) -> CompiledGenerator:
    """``model``: the stock model, in evaluation mode, on the CPU. ``weigh``: makes int8 weights of its layers."""
    build = COMPILED.get(model.config.model_type)
    if build is None:
        raise NotImplementedError(f"{model.config.model_type} has no compiled decoder")
    kind = KINDS.get(model.dtype) if weigh is None else "int8_weights"
    if kind is None or model.device.type != "cpu" or not can_compile(kind):
        raise NotImplementedError("this processor has no instructions for compiled decoders")
    return build(model, kind, weigh or plain_weight)


def _activation(name: str) -> Any:
    if name not in NAMES:
        raise NotImplementedError(f"the compiled decoder has no {name}")
    return NAMES[name]


def plain_weight(*linears: nn.Linear) -> Weight:
    """Several layers over the same input as one, their outputs side by side."""
    biases = [
        linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias.detach()
        for linear in linears
    ]
    return Weight(torch.cat([linear.weight.detach() for linear in linears]), torch.cat(biases))


def _norm(norm: Any) -> Norm:
    return Norm(norm.weight.detach(), norm.bias.detach(), norm.eps)


def _rms(norm: Any, scale: float = 1.0) -> Norm:
    """``scale``: what its output is multiplied by."""
    return Norm(norm.weight.detach() * scale, None, norm.variance_epsilon)


def _keeps(key: nn.Linear, value: nn.Linear, heads: int) -> Callable[[Tensor], Tensor]:
    both = PackedLinear.fused(key, value)

    def keep(hidden: Tensor) -> Tensor:
        kept: Tensor = both(hidden)
        return kept.view(len(hidden), 2, heads, -1).permute(1, 2, 0, 3)

    return keep
