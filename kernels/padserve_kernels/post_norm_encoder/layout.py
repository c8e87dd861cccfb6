"""What a post-LayerNorm encoder is made of."""

from dataclasses import dataclass

from torch import Tensor

from padserve_kernels.int8_rows import QuantizedWeight
from padserve_kernels.x86.features import Activation, Kind
from padserve_kernels.x86.layout import Norm, Weight


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """``qkv``: queries, keys and values side by side, ``[3 * hidden, hidden]``."""

    qkv: Weight | QuantizedWeight
    output: Weight | QuantizedWeight
    up: Weight | QuantizedWeight
    down: Weight | QuantizedWeight
    attention_norm: Norm
    output_norm: Norm


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Tables ``[rows, hidden]``, float32 or bfloat16, whose rows are added. ``types``: None where there are none."""

    words: Tensor
    positions: Tensor
    types: Tensor | None
    norm: Norm


@dataclass(frozen=True, slots=True)
class EncoderWeights:
    """Layers of one shape. ``kind``: what products multiply; the weights of ``int8`` are `QuantizedWeight`."""

    kind: Kind
    layers: tuple[LayerWeights, ...]
    num_heads: int
    activation: Activation
    embeddings: Embeddings | None = None
