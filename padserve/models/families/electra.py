"""ELECTRA: BERT's layers after an optional projection of smaller embeddings."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from padserve.models.families.base import Family, bert_layers
from padserve.models.fused import StockLayer
from padserve_kernels.post_norm_encoder import Embeddings


class Electra(Family):
    def layers(self, base: Any) -> list[StockLayer] | None:
        return bert_layers(base)

    def embed(self, base: Any) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
        embeddings = super().embed(base)
        if not hasattr(base, "embeddings_project"):
            return embeddings

        def run(input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor | None) -> Tensor:
            projected: Tensor = base.embeddings_project(embeddings(input_ids, position_ids, token_type_ids))
            return projected

        return run

    def tables(self, base: Any) -> Embeddings | None:
        return None if hasattr(base, "embeddings_project") else super().tables(base)


FAMILY = Electra()
