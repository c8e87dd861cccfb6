"""ModernBERT: rotary positions, local layers whose window the packed attention honours, a head that may mean-pool."""

from padserve.models.families.base import Family


class ModernBert(Family):
    first_token_head = False


FAMILY = ModernBert()
