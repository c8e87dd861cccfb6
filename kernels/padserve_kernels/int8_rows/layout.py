"""What the int8 ops pass around, and what an implementation of their epilogues offers."""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

RowActivation = Literal["gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """``values``: int8 ``[rows, width]``; ``scale``, ``middle``: float32 ``[rows]``."""

    values: Tensor
    scale: Tensor
    middle: Tensor

    def __getitem__(self, rows: Tensor) -> "QuantizedRows":
        return QuantizedRows(self.values[rows], self.scale[rows], self.middle[rows])


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """``values``: int8 ``[out_features, in_features]``; ``scale``, ``sums``, ``bias``: float32 ``[out_features]``.

    ``sums[c]`` is ``scale[c] * values[c].sum()``. ``smooth``: float32 ``[in_features]``, what its rows are multiplied
    by before they are quantized.
    """

    values: Tensor
    scale: Tensor
    sums: Tensor
    bias: Tensor
    smooth: Tensor

    def product(self, rows: QuantizedRows) -> Tensor:
        """Exact, int32 ``[rows, out_features]``."""
        return torch._int_mm(rows.values, self.values.t())


class Epilogues(Protocol):
    """What follows an integer product ``[rows, out_features]``; the ops of `padserve_kernels.int8_rows` say what."""

    def quantize(self, x: Tensor, smooth: Tensor) -> QuantizedRows: ...

    def dequantize(self, products: Tensor, rows: QuantizedRows, weight: QuantizedWeight) -> Tensor: ...

    def activate(
        self,
        products: Tensor,
        rows: QuantizedRows,
        weight: QuantizedWeight,
        activation: RowActivation,
        smooth: Tensor,
    ) -> QuantizedRows: ...

    def add_norm(
        self,
        products: Tensor,
        rows: QuantizedRows,
        weight: QuantizedWeight,
        residual: Tensor,
        norm_weight: Tensor,
        norm_bias: Tensor,
        eps: float,
        smooth: Tensor,
    ) -> tuple[Tensor, QuantizedRows]: ...
