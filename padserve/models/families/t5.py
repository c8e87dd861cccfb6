"""Encoders of T5, mT5, FLAN-T5 and UMT5: RMS norm before each block, and positions by a bias on distances alone.

T5 has one table of biases for all layers, UMT5 one for each.
"""

from typing import Any

import torch
from torch import Tensor

from padserve.attention.biased import BiasedAttention
from padserve.models.families.base import Family, PackedEncoder


class T5(Family):
    def stock_encoder(self, base: Any) -> PackedEncoder:
        if getattr(base, "decoder", None) is not None:
            raise NotImplementedError("the head reads the decoder")
        return self.stack_encoder(base.encoder)

    def stack_encoder(self, stack: Any) -> PackedEncoder:
        """``stack``: the stock encoder."""
        attention = relative_attention(stack)

        def run(
            input_ids: Tensor,
            position_ids: Tensor,
            token_types: Tensor | None,
            lengths: tuple[int, ...],
            wanted: Tensor | None,
        ) -> Tensor:
            hidden: Tensor = stack.embed_tokens(input_ids)
            for block, attend in zip(stack.block, attention, strict=True):
                layer = block.layer[0]
                hidden = hidden + self_attention(layer.SelfAttention, layer.layer_norm(hidden), attend, lengths)
                hidden = block.layer[1](hidden)
            if wanted is not None:
                hidden = hidden[wanted]
            normalized: Tensor = stack.final_layer_norm(hidden)
            return normalized

        return run


def relative_attention(stack: Any) -> list[BiasedAttention]:
    """One a layer; layers without a table of their own share the first one's."""
    attention: list[BiasedAttention] = []
    for block in stack.block:
        own = block.layer[0].SelfAttention
        attention.append(_biased(own) if own.has_relative_attention_bias else attention[0])
    return attention


def _biased(own: Any) -> BiasedAttention:
    def bias_of(length: int) -> Tensor:
        with torch.inference_mode():
            bias: Tensor = own.compute_bias(length, length)
        return bias[0]

    return BiasedAttention(bias_of, own.scaling)


def self_attention(own: Any, hidden: Tensor, attend: BiasedAttention, lengths: tuple[int, ...]) -> Tensor:
    """``hidden``: ``[total_tokens, hidden]``, normalized; returns the same shape, without the residual."""
    total = len(hidden)
    query, key, value = (
        projection(hidden).view(1, total, own.n_heads, own.key_value_proj_dim).transpose(1, 2)
        for projection in (own.q, own.k, own.v)
    )
    output: Tensor = own.o(attend(query, key, value, lengths).reshape(total, -1))
    return output


FAMILY = T5()
