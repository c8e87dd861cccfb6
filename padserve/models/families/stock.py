"""Families that need nothing but the packed attention: positions from 0, the stock module."""

from padserve.models.families.base import Family

FAMILY = Family()
