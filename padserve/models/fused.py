"""A lean encoder for post-LayerNorm families (BERT, RoBERTa, XLM-R, ELECTRA, DistilBERT): the same arithmetic as the
stock module with query, key and value as one product and activation and residual sums as epilogues.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from padserve.attention.packed import packed_attention
from padserve.models.linear import FusedActivation, PackedLinear

Attend = Callable[[Tensor, Tensor, Tensor, tuple[int, ...]], Tensor]
"""(query, key, value, lengths): ``[1, num_heads, tokens, head_dim]`` -> ``[1, tokens, num_heads, head_dim]``."""
AfterFirst = Callable[[Tensor, Tensor, tuple[int, ...]], Tensor]
Embed = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(input_ids, position_ids, token_type_ids), each ``[total_tokens]`` -> ``[total_tokens, hidden]``."""

ACTIVATIONS: dict[str, FusedActivation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


@dataclass(frozen=True, slots=True)
class StockLayer:
    """The parts of one stock layer, whatever the family calls them."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    output: nn.Linear
    attention_norm: nn.LayerNorm
    up: nn.Linear
    down: nn.Linear
    output_norm: nn.LayerNorm


class FusedLayer:
    """One layer over a packed stream ``[total_tokens, hidden]``."""

    def __init__(self, stock: StockLayer, num_heads: int, activation: FusedActivation, attend: Attend) -> None:
        self.qkv = PackedLinear.fused(stock.query, stock.key, stock.value)
        self.output = PackedLinear.of(stock.output)
        self.up = PackedLinear.of(stock.up, activation)
        self.down = PackedLinear.of(stock.down)
        self.attention_norm, self.output_norm = stock.attention_norm, stock.output_norm
        self.attend = attend
        self.num_heads = num_heads

    def __call__(self, hidden: Tensor, lengths: tuple[int, ...], wanted: Tensor | None = None) -> Tensor:
        """``wanted``: the rows that are returned, None for all."""
        context = attended(self.qkv(hidden), lengths, self.num_heads, self.attend)
        if wanted is not None:
            context, hidden = context[wanted], hidden[wanted]
        hidden = _norm(self.attention_norm, self.output.add(context, hidden))
        return _norm(self.output_norm, self.down.add(self.up(hidden), hidden))

    def trace(self, hidden: Tensor, lengths: tuple[int, ...]) -> tuple[Tensor, "LayerInputs"]:
        """The layer's output, and what each of its products was given on the way."""
        context = attended(self.qkv(hidden), lengths, self.num_heads, self.attend)
        between = _norm(self.attention_norm, self.output.add(context, hidden))
        active = self.up(between)
        return _norm(self.output_norm, self.down.add(active, between)), LayerInputs(hidden, context, between, active)


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """What the products of a layer are given, each ``[total_tokens, in_features]``."""

    qkv: Tensor
    output: Tensor
    up: Tensor
    down: Tensor


def attended(qkv: Tensor, lengths: tuple[int, ...], num_heads: int, attend: Attend) -> Tensor:
    """``qkv``: ``[total_tokens, 3 * hidden]``, query, key and value side by side -> ``[total_tokens, hidden]``."""
    total = len(qkv)
    query, key, value = qkv.view(1, total, 3, num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    return attend(query, key, value, lengths).reshape(total, -1)


class PlainAttention:
    """Scaled dot products within each sequence, no bias."""

    def __init__(self, head_dim: int) -> None:
        self._scale = head_dim**-0.5

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, lengths: tuple[int, ...]) -> Tensor:
        return packed_attention(query, key, value, lengths, self._scale)


def _norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    return F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


class FusedEncoder:
    """``embed(input_ids, position_ids, token_type_ids) -> [total_tokens, hidden]``, then the layers.

    ``after_first(embedded, hidden, lengths)``: what stands between the first layer and the second, if anything.
    """

    def __init__(
        self,
        embed: Embed,
        layers: list[FusedLayer],
        after_first: AfterFirst | None = None,
    ) -> None:
        self.embed, self.layers, self.after_first = embed, layers, after_first

    def __call__(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        token_type_ids: Tensor | None,
        lengths: tuple[int, ...],
        wanted: Tensor | None = None,
    ) -> Tensor:
        embedded = hidden = self.embed(input_ids, position_ids, token_type_ids)
        last = len(self.layers) - 1
        leave_out = None if self.after_first is not None and last == 0 else wanted
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden, lengths, leave_out if index == last else None)
            if index == 0 and self.after_first is not None:
                hidden = self.after_first(embedded, hidden, lengths)
        return hidden if wanted is leave_out or wanted is None else hidden[wanted]

    def trace(
        self, input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor | None, lengths: tuple[int, ...]
    ) -> list[LayerInputs]:
        """What the products of each layer are given."""
        embedded = hidden = self.embed(input_ids, position_ids, token_type_ids)
        traced = []
        for index, layer in enumerate(self.layers):
            hidden, inputs = layer.trace(hidden, lengths)
            traced.append(inputs)
            if index == 0 and self.after_first is not None:
                hidden = self.after_first(embedded, hidden, lengths)
        return traced
