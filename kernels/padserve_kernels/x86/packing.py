"""Layers' weights packed and stacked, ``[layers, …]``, as compiled functions take them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from padserve_kernels.int8_rows import QuantizedWeight
from padserve_kernels.x86.features import Kind
from padserve_kernels.x86.layout import Norm, Weight
from padserve_kernels.x86.products import STORED, pack_weight, padded

Array = npt.NDArray[Any]


def shape(weight: Weight | QuantizedWeight) -> tuple[int, int]:
    outputs, inputs = weight.values.shape
    return int(outputs), int(inputs)


def stack(kind: Kind, weights: Sequence[Weight | QuantizedWeight], columns: Array | None = None) -> tuple[Array, ...]:
    """Packed values, bias, and for int8 scale, sums, what unsigned rows add, and smoothing: each ``[layers, …]``."""
    made = [pack(kind, weight, columns) for weight in weights]
    return tuple(np.stack(arrays) for arrays in zip(*made, strict=True))


def pack(kind: Kind, weight: Weight | QuantizedWeight, columns: Array | None) -> tuple[Array, ...]:
    outputs, inputs = shape(weight)
    places = np.arange(outputs) if columns is None else columns
    width = int(places.max()) + 1

    def spread(vector: Tensor | Array) -> Array:
        given = vector.detach().float().numpy() if isinstance(vector, Tensor) else vector
        whole: Array = np.zeros(padded(width), given.dtype)
        whole[places] = given
        return whole

    values = np.zeros((width, inputs), STORED[kind])
    values[places] = stored(kind, weight.values)
    packed = pack_weight(kind, values)
    if not isinstance(weight, QuantizedWeight):
        nothing = np.zeros(1, np.float32)
        return packed, spread(weight.bias), nothing, nothing, np.zeros(1, np.int32), nothing
    added = 128 * weight.values.numpy().astype(np.int32).sum(1, dtype=np.int32)
    smooth = weight.smooth.float().numpy()
    return packed, spread(weight.bias), spread(weight.scale), spread(weight.sums), spread(added), smooth


def stored(kind: Kind, values: Tensor) -> Array:
    values = values.detach()
    if kind == "bfloat16":
        return values.bfloat16().view(torch.int16).numpy().view(np.uint16)
    return values.float().numpy() if kind == "float32" else values.numpy()


def floats(vector: Tensor) -> Array:
    given: Array = vector.detach().float().contiguous().numpy()
    return given


def stack_norms(norms: Sequence[Norm]) -> tuple[Array, Array]:
    """Weights and biases; none is zero."""
    weights = [floats(norm.weight) for norm in norms]
    biases = [np.zeros_like(weights[0]) if norm.bias is None else floats(norm.bias) for norm in norms]
    return np.stack(weights), np.stack(biases)
