"""RoBERTa, XLM-RoBERTa, CamemBERT, data2vec-text: BERT's layers, positions start at padding_idx + 1."""

from typing import Any

from padserve.models.families.base import Family, bert_layers
from padserve.models.fused import StockLayer


class Roberta(Family):
    def position_offset(self, config: Any) -> int:
        return int(config.pad_token_id) + 1

    def layers(self, base: Any) -> list[StockLayer] | None:
        return bert_layers(base)


FAMILY = Roberta()
