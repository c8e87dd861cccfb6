"""ALBERT: one layer's weights shared by all layers, so the stock module runs."""

from padserve.models.families.base import Family

FAMILY = Family()
