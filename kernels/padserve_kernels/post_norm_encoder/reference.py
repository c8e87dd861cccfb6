"""The definition in torch: test oracle."""

import torch
import torch.nn.functional as F
from torch import Tensor

from padserve_kernels import int8_rows
from padserve_kernels.int8_rows import QuantizedWeight
from padserve_kernels.post_norm_encoder.layout import EncoderWeights
from padserve_kernels.x86.layout import Norm, Weight


def encode(weights: EncoderWeights, hidden: Tensor, lengths: tuple[int, ...], wanted: Tensor | None = None) -> Tensor:
    """See `padserve_kernels.post_norm_encoder.compiled.CompiledEncoder`."""
    for layer in weights.layers:
        context = _attend(_linear(hidden, layer.qkv), lengths, weights.num_heads)
        hidden = _norm(hidden + _linear(context, layer.output), layer.attention_norm)
        active = _activate(_linear(hidden, layer.up), weights.activation)
        hidden = _norm(hidden + _linear(active, layer.down), layer.output_norm)
    return hidden if wanted is None else hidden[wanted]


def _linear(x: Tensor, weight: Weight | QuantizedWeight) -> Tensor:
    if isinstance(weight, QuantizedWeight):
        return int8_rows.linear(int8_rows.quantize(x, weight.smooth), weight)
    return x.to(weight.values.dtype).float() @ weight.values.float().T + weight.bias.float()


def _attend(qkv: Tensor, lengths: tuple[int, ...], num_heads: int) -> Tensor:
    total = len(qkv)
    query, key, value = qkv.view(total, 3, num_heads, -1).permute(1, 2, 0, 3).unbind(0)
    outputs = [
        F.scaled_dot_product_attention(*parts)
        for parts in zip(*(torch.split(one, list(lengths), 1) for one in (query, key, value)), strict=True)
    ]
    return torch.cat(outputs, 1).transpose(0, 1).reshape(total, -1)


def _norm(x: Tensor, norm: Norm) -> Tensor:
    return F.layer_norm(
        x, norm.weight.shape, norm.weight.float(), None if norm.bias is None else norm.bias.float(), norm.eps
    )


def _activate(x: Tensor, name: str) -> Tensor:
    if name == "relu":
        return F.relu(x)
    return F.gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")
