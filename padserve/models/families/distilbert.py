"""DistilBERT: BERT's layer under other names, no token types."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from padserve.models.families.base import Family
from padserve.models.fused import StockLayer


class DistilBert(Family):
    def layers(self, base: Any) -> list[StockLayer] | None:
        return [
            StockLayer(
                query=layer.attention.q_lin,
                key=layer.attention.k_lin,
                value=layer.attention.v_lin,
                output=layer.attention.out_lin,
                attention_norm=layer.sa_layer_norm,
                up=layer.ffn.lin1,
                down=layer.ffn.lin2,
                output_norm=layer.output_layer_norm,
            )
            for layer in base.transformer.layer
        ]

    def activation_name(self, config: Any) -> str:
        return str(config.activation)

    def embed(self, base: Any) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
        embeddings = base.embeddings

        def run(input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor | None) -> Tensor:
            embedded: Tensor = embeddings(input_ids[None], None, position_ids[None])
            return embedded[0]

        return run


FAMILY = DistilBert()
