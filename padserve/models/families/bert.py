"""BERT: post-LayerNorm, absolute positions from 0."""

from torch import nn

from padserve.models.families.base import Family, bert_layers
from padserve.models.fused import StockLayer


class Bert(Family):
    def layers(self, base: nn.Module) -> list[StockLayer] | None:
        return bert_layers(base)


FAMILY = Bert()
