"""RoBERTa with the LayerNorm before each block (also XLM-RoBERTa-XL): the stock module, RoBERTa's positions."""

from typing import Any

from padserve.models.families.base import Family


class RobertaPreLayerNorm(Family):
    def position_offset(self, config: Any) -> int:
        return int(config.pad_token_id) + 1


FAMILY = RobertaPreLayerNorm()
