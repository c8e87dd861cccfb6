"""What a decoder is made of."""

from dataclasses import dataclass

from torch import Tensor

from padserve_kernels.int8_rows import QuantizedWeight
from padserve_kernels.x86.features import Activation, Kind
from padserve_kernels.x86.layout import Norm, Weight

AnyWeight = Weight | QuantizedWeight


@dataclass(frozen=True, slots=True)
class CrossWeights:
    """Attention to a source."""

    query: AnyWeight
    output: AnyWeight
    norm: Norm


@dataclass(frozen=True, slots=True)
class DecoderLayerWeights:
    """``qkv``: queries of all heads, keys and values side by side. ``up``: of gated layers gate and up side by side."""

    qkv: AnyWeight
    output: AnyWeight
    up: AnyWeight
    down: AnyWeight
    attention_norm: Norm
    feed_norm: Norm
    cross: CrossWeights | None = None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """Layers of one shape. ``scale, cross_scale``: of scores. ``bias``: float32 ``[num_heads, distances]``, farther
    keys having the last one's. ``norm``: before the head, None for none. ``head``: logits."""

    kind: Kind
    layers: tuple[DecoderLayerWeights, ...]
    head: AnyWeight
    norm: Norm | None
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    activation: Activation
    gated: bool
    norm_first: bool
    rms: bool
    cross_scale: float = 1.0
    bias: Tensor | None = None
