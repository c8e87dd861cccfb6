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
        self.head_dim = stock.query.out_features // num_heads

    def __call__(self, hidden: Tensor, lengths: tuple[int, ...]) -> Tensor:
        total = len(hidden)
        qkv = self.qkv(hidden).view(1, total, 3, self.num_heads, self.head_dim)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # [1, num_heads, total_tokens, head_dim]
        context = self.attend(query, key, value, lengths)
        hidden = _norm(self.attention_norm, self.output.add(context.reshape(total, -1), hidden))
        return _norm(self.output_norm, self.down.add(self.up(hidden), hidden))


def plain_attention(head_dim: int) -> Attend:
    """Scaled dot products within each sequence, no bias."""
    scale = head_dim**-0.5
    return lambda query, key, value, lengths: packed_attention(query, key, value, lengths, scale)


def _norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    return F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


class FusedEncoder:
    """``embed(input_ids, position_ids, token_type_ids) -> [total_tokens, hidden]``, then the layers.

    ``after_first(embedded, hidden, lengths)``: what stands between the first layer and the second, if anything.
    """

    def __init__(
        self,
        embed: Callable[[Tensor, Tensor, Tensor | None], Tensor],
        layers: list[FusedLayer],
        after_first: AfterFirst | None = None,
    ) -> None:
        self.embed, self.layers, self.after_first = embed, layers, after_first

    def __call__(
        self, input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor | None, lengths: tuple[int, ...]
    ) -> Tensor:
        embedded = hidden = self.embed(input_ids, position_ids, token_type_ids)
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden, lengths)
            if index == 0 and self.after_first is not None:
                hidden = self.after_first(embedded, hidden, lengths)
        return hidden
