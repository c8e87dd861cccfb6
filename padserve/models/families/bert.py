"""BERT: post-LayerNorm, absolute positions from 0."""

from typing import Any

from padserve.models.families.base import Family, bert_layers
from padserve.models.fused import StockLayer


class Bert(Family):
    def layers(self, base: Any) -> list[StockLayer] | None:
        return bert_layers(base)


FAMILY = Bert()
