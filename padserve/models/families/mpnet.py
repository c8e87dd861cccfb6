"""MPNet: BERT's layer with one bias by relative position for all layers, RoBERTa's positions."""

from typing import Any

import torch
from torch import Tensor

from padserve.attention.biased import BiasedAttention
from padserve.models.families.base import Family
from padserve.models.fused import Attend, StockLayer


class MPNet(Family):
    def position_offset(self, config: Any) -> int:
        return 2  # the module's padding_idx is 1 whatever the configuration says

    def layers(self, base: Any) -> list[StockLayer] | None:
        return [
            StockLayer(
                query=layer.attention.attn.q,
                key=layer.attention.attn.k,
                value=layer.attention.attn.v,
                output=layer.attention.attn.o,
                attention_norm=layer.attention.LayerNorm,
                up=layer.intermediate.dense,
                down=layer.output.dense,
                output_norm=layer.output.LayerNorm,
            )
            for layer in base.encoder.layer
        ]

    def attention(self, base: Any) -> list[Attend]:
        encoder, config = base.encoder, base.config
        scale = (config.hidden_size // config.num_attention_heads) ** -0.5

        def bias_of(length: int) -> Tensor:
            with torch.inference_mode():
                bias: Tensor = encoder.compute_position_bias(torch.empty(1, length, 1, device=base.device))
            return bias[0]

        shared = BiasedAttention(bias_of, scale)
        return [shared] * len(encoder.layer)


FAMILY = MPNet()
