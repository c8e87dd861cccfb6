"""Weights as they are given, before they are packed."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Weight:
    """``values``: ``[out_features, in_features]``, float32 or bfloat16; ``bias``: ``[out_features]``."""

    values: Tensor
    bias: Tensor


@dataclass(frozen=True, slots=True)
class Norm:
    """``weight, bias``: ``[hidden]``; an RMSNorm has no bias."""

    weight: Tensor
    bias: Tensor | None
    eps: float
