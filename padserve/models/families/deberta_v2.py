"""DeBERTa-v2, DeBERTa-v3, mDeBERTa: disentangled attention; some have a convolution beside the first layer."""

from typing import Any

import torch
from torch import Tensor
from transformers.activations import ACT2FN

from padserve.attention.disentangled import DisentangledAttention, score_scale
from padserve.models.families.base import Family
from padserve.models.fused import AfterFirst, Attend, StockLayer


class DebertaV2(Family):
    def layers(self, base: Any) -> list[StockLayer] | None:
        if not base.encoder.relative_attention:
            return None
        return [
            StockLayer(
                query=layer.attention.self.query_proj,
                key=layer.attention.self.key_proj,
                value=layer.attention.self.value_proj,
                output=layer.attention.output.dense,
                attention_norm=layer.attention.output.LayerNorm,
                up=layer.intermediate.dense,
                down=layer.output.dense,
                output_norm=layer.output.LayerNorm,
            )
            for layer in base.encoder.layer
        ]

    def attention(self, base: Any) -> list[Attend]:
        embeddings = base.encoder.get_rel_embedding()
        return [disentangled(layer.attention.self, embeddings) for layer in base.encoder.layer]

    def after_first(self, base: Any) -> AfterFirst | None:
        return None if base.encoder.conv is None else convolution(base.encoder.conv)


def disentangled(attention: Any, embeddings: Tensor) -> DisentangledAttention:
    """Project the position rows of one layer; the weights are all that they depend on."""
    span, heads = attention.pos_ebd_size, attention.num_attention_heads
    rows = embeddings[: 2 * span]

    def project(own: str, shared: Any) -> Tensor:
        projected: Tensor = (shared if attention.share_att_key else getattr(attention, own))(rows)
        return projected.view(len(rows), heads, -1).transpose(0, 1).contiguous()

    with torch.inference_mode():
        terms = attention.pos_att_type
        pos_key = project("pos_key_proj", attention.key_proj) if "c2p" in terms else None
        pos_query = project("pos_query_proj", attention.query_proj) if "p2c" in terms else None
        scale = score_scale(attention.attention_head_size, 1 + ("c2p" in terms) + ("p2c" in terms))
        return DisentangledAttention(
            pos_key, pos_query, scale, span, attention.position_buckets, attention.max_relative_positions
        )


def convolution(conv: Any) -> AfterFirst:
    """The convolution over each sequence by itself, with zeros at its edges, so that neighbours do not mix."""
    activation = ACT2FN[conv.conv_act]

    def run(embedded: Tensor, hidden: Tensor, lengths: tuple[int, ...]) -> Tensor:
        parts = [conv.conv(part.T[None])[0].T for part in torch.split(embedded, list(lengths))]
        normalized: Tensor = conv.LayerNorm(hidden + activation(torch.cat(parts)))
        return normalized

    return run


FAMILY = DebertaV2()
