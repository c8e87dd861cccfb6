"""The definition of the int8 epilogues in torch: test oracle, and what runs where numba does not."""

import torch
import torch.nn.functional as F
from torch import Tensor

from padserve_kernels.int8_rows.layout import QuantizedRows, QuantizedWeight, RowActivation

LEVELS = 254.0


class Reference:
    """See `padserve_kernels.int8_rows`."""

    def quantize(self, x: Tensor, smooth: Tensor) -> QuantizedRows:
        y = x * smooth
        low, high = y.amin(1, keepdim=True), y.amax(1, keepdim=True)
        middle, scale = (high + low) / 2, (high - low) / LEVELS
        steps = torch.where(scale == 0, 0.0, (y - middle) / scale)
        values = torch.nan_to_num(steps).round().clamp(-127, 127).to(torch.int8)
        return QuantizedRows(values, scale[:, 0].contiguous(), middle[:, 0].contiguous())

    def dequantize(self, products: Tensor, rows: QuantizedRows, weight: QuantizedWeight) -> Tensor:
        scaled = products.float() * (rows.scale[:, None] * weight.scale)
        return scaled + rows.middle[:, None] * weight.sums + weight.bias

    def activate(
        self,
        products: Tensor,
        rows: QuantizedRows,
        weight: QuantizedWeight,
        activation: RowActivation,
        smooth: Tensor,
    ) -> QuantizedRows:
        x = self.dequantize(products, rows, weight)
        if activation == "relu":
            return self.quantize(F.relu(x), smooth)
        return self.quantize(F.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none"), smooth)

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
    ) -> tuple[Tensor, QuantizedRows]:
        total = self.dequantize(products, rows, weight) + residual
        hidden = F.layer_norm(total, norm_weight.shape, norm_weight, norm_bias, eps)
        return hidden, self.quantize(hidden, smooth)
