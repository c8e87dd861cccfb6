"""EuroBERT: Llama's layer without its mask; rotary positions; a classifier that may pool over the whole sequence."""

from padserve.models.families.base import Family


class EuroBert(Family):
    first_token_head = False


FAMILY = EuroBert()
