"""The definition in torch, of one whole sequence: test oracle."""

import torch
import torch.nn.functional as F
from torch import Tensor

from padserve_kernels.decoder.layout import AnyWeight, CrossWeights, DecoderLayerWeights, DecoderWeights
from padserve_kernels.int8_rows import QuantizedWeight
from padserve_kernels.x86.layout import Norm


def decode(
    weights: DecoderWeights,
    hidden: Tensor,
    turns: tuple[Tensor, Tensor] | None = None,
    source: Tensor | None = None,
) -> Tensor:
    """Logits ``[length, vocab]`` after each token of a sequence. ``hidden``: its embeddings ``[length, hidden]``.

    ``turns``: cosines and sines ``[length, head_dim]``. ``source``: keys and values, ``[layers, 2, num_heads, source
    length, head_dim]``.
    """
    for index, layer in enumerate(weights.layers):
        hidden = _around(weights, hidden, layer.attention_norm, lambda x, one=layer: _attend(weights, one, x, turns))
        cross = layer.cross
        if cross is not None and source is not None:
            kept = source[index]
            hidden = _around(weights, hidden, cross.norm, lambda x, one=cross, kv=kept: _look(weights, one, x, kv))
        hidden = _around(weights, hidden, layer.feed_norm, lambda x, one=layer: _feed(weights, one, x))
    if weights.norm is not None:
        hidden = _norm(hidden, weights.norm, weights.rms)
    return _linear(hidden, weights.head, weights)


def _around(weights: DecoderWeights, hidden: Tensor, norm: Norm, part) -> Tensor:  # type: ignore[no-untyped-def]
    """A part with the norm before or after it."""
    if weights.norm_first:
        added: Tensor = hidden + part(_norm(hidden, norm, weights.rms))
        return added
    return _norm(hidden + part(hidden), norm, weights.rms)


def _attend(
    weights: DecoderWeights, layer: DecoderLayerWeights, x: Tensor, turns: tuple[Tensor, Tensor] | None
) -> Tensor:
    length, heads, kv_heads = len(x), weights.num_heads, weights.num_kv_heads
    parts = _linear(x, layer.qkv, weights).view(length, heads + 2 * kv_heads, -1).transpose(0, 1)
    query, key, value = parts.split([heads, kv_heads, kv_heads])
    if turns is not None:
        query, key = (_turn(one, *turns) for one in (query, key))
    key, value = (one.repeat_interleave(heads // kv_heads, 0) for one in (key, value))
    scores = query @ key.transpose(1, 2) * weights.scale
    places = torch.arange(length)
    distance = places[:, None] - places
    if weights.bias is not None:
        scores = scores + weights.bias[:, distance.clamp(0, weights.bias.shape[1] - 1)]
    context = scores.masked_fill(distance < 0, float("-inf")).softmax(-1) @ value
    return _linear(context.transpose(0, 1).reshape(length, -1), layer.output, weights)


def _look(weights: DecoderWeights, cross: CrossWeights, x: Tensor, kept: Tensor) -> Tensor:
    query = _linear(x, cross.query, weights).view(len(x), weights.num_heads, -1).transpose(0, 1)
    context = (query @ kept[0].transpose(1, 2) * weights.cross_scale).softmax(-1) @ kept[1]
    return _linear(context.transpose(0, 1).reshape(len(x), -1), cross.output, weights)


def _feed(weights: DecoderWeights, layer: DecoderLayerWeights, x: Tensor) -> Tensor:
    up = _linear(x, layer.up, weights)
    if weights.gated:
        gate, up = up.chunk(2, 1)
        return _linear(_activate(gate, weights.activation) * up, layer.down, weights)
    return _linear(_activate(up, weights.activation), layer.down, weights)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def _linear(x: Tensor, weight: AnyWeight, weights: DecoderWeights) -> Tensor:
    if isinstance(weight, QuantizedWeight):
        return x.bfloat16().float() @ (weight.values.float() * weight.scale[:, None]).T + weight.bias
    return x.to(weight.values.dtype).float() @ weight.values.float().T + weight.bias.float()


def _norm(x: Tensor, norm: Norm, rms: bool) -> Tensor:
    if rms:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps) * norm.weight
    return F.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)


def _activate(x: Tensor, name: str) -> Tensor:
    if name in ("relu", "silu"):
        return F.relu(x) if name == "relu" else F.silu(x)
    return F.gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")
