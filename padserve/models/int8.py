"""Int8 (W8A8) encoders: a fused encoder's products in integers, each token quantized by itself.

Weights are quantized once at load with sample sequences: these tell how much of an activation's outlying channels moves
into the weights (Xiao et al. 2023, SmoothQuant), and weights are rounded column by column, each making up for the error
of those before it (Frantar et al. 2023, GPTQ). On MiniLM the mean cosine with float32 over texts is 0.99945; without
the one it is 0.9967, without the other 0.9992.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from padserve.models.fused import AfterFirst, Attend, Embed, FusedEncoder, FusedLayer, LayerInputs, StockLayer, attended
from padserve_kernels import int8_rows
from padserve_kernels.int8_rows import QuantizedRows, QuantizedWeight, RowActivation

LEVELS = 127
DAMPING = 0.05
"""Added to the second moments of inputs, in parts of their mean: a few samples do not tell everything."""
COLUMNS_AT_ONCE = 64
SHARE = 0.55
"""Of the spread of a channel that moves into the weights. 0.5 to 0.6 measured alike, 0.4 and 0.7 worse."""
LEAST_SEEN = 0.05
"""A channel counts as no smaller than this part of the median one: it may be larger in other texts."""
ACTIVATIONS: dict[str, RowActivation] = {"gelu": "gelu", "gelu_tanh": "gelu_tanh", "relu": "relu"}


@dataclass(frozen=True, slots=True)
class Int8Layer:
    """One layer over rows that are quantized already."""

    qkv: QuantizedWeight
    output: QuantizedWeight
    up: QuantizedWeight
    down: QuantizedWeight
    attention_norm: nn.LayerNorm
    output_norm: nn.LayerNorm
    activation: RowActivation
    attend: Attend
    num_heads: int

    def __call__(
        self, hidden: Tensor, rows: QuantizedRows, lengths: tuple[int, ...], wanted: Tensor | None, smooth: Tensor
    ) -> tuple[Tensor, QuantizedRows]:
        """``hidden``: float32, and ``rows``, the same quantized. ``smooth``: for the product that follows the layer."""
        context = attended(int8_rows.linear(rows, self.qkv), lengths, self.num_heads, self.attend)
        if wanted is not None:
            context, hidden = context[wanted], hidden[wanted]
        rows = int8_rows.quantize(context, self.output.smooth)
        hidden, rows = _linear_norm(rows, self.output, hidden, self.attention_norm, self.up.smooth)
        rows = int8_rows.linear_activation(rows, self.up, self.activation, self.down.smooth)
        return _linear_norm(rows, self.down, hidden, self.output_norm, smooth)


def _linear_norm(
    rows: QuantizedRows, weight: QuantizedWeight, residual: Tensor, norm: nn.LayerNorm, smooth: Tensor
) -> tuple[Tensor, QuantizedRows]:
    return int8_rows.linear_norm(rows, weight, residual, norm.weight, norm.bias, norm.eps, smooth)


@dataclass(frozen=True, slots=True)
class Int8Encoder:
    """See `padserve.models.fused.FusedEncoder`."""

    embed: Embed
    layers: tuple[Int8Layer, ...]
    after_first: AfterFirst | None

    def __call__(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        token_type_ids: Tensor | None,
        lengths: tuple[int, ...],
        wanted: Tensor | None = None,
    ) -> Tensor:
        embedded = hidden = self.embed(input_ids, position_ids, token_type_ids)
        rows = int8_rows.quantize(hidden, self.layers[0].qkv.smooth)
        last = len(self.layers) - 1
        leave_out = None if self.after_first is not None and last == 0 else wanted
        for index, layer in enumerate(self.layers):
            smooth = self.layers[min(index + 1, last)].qkv.smooth
            hidden, rows = layer(hidden, rows, lengths, leave_out if index == last else None, smooth)
            if index == 0 and self.after_first is not None:
                hidden = self.after_first(embedded, hidden, lengths)
                rows = int8_rows.quantize(hidden, smooth)
        return hidden if wanted is leave_out or wanted is None else hidden[wanted]


def quantize_encoder(encoder: FusedEncoder, stock: list[StockLayer], inputs: list[LayerInputs]) -> Int8Encoder:
    """``stock``: the layers that ``encoder`` was made of; ``inputs``: what sample sequences gave their products.
    Errors: `NotImplementedError` for an activation that the int8 layer does not have.
    """
    layers = [
        _quantize_layer(fused, plain, seen) for fused, plain, seen in zip(encoder.layers, stock, inputs, strict=True)
    ]
    return Int8Encoder(encoder.embed, tuple(layers), encoder.after_first)


def _quantize_layer(fused: FusedLayer, stock: StockLayer, inputs: LayerInputs) -> Int8Layer:
    activation = ACTIVATIONS.get(fused.up.activation)
    if activation is None:
        raise NotImplementedError(f"int8 has no {fused.up.activation}")
    return Int8Layer(
        qkv=quantize_linears((stock.query, stock.key, stock.value), inputs.qkv),
        output=quantize_linears((stock.output,), inputs.output),
        up=quantize_linears((stock.up,), inputs.up),
        down=quantize_linears((stock.down,), inputs.down),
        attention_norm=stock.attention_norm,
        output_norm=stock.output_norm,
        activation=activation,
        attend=fused.attend,
        num_heads=fused.num_heads,
    )


def quantize_linears(linears: tuple[nn.Linear, ...], inputs: Tensor, smooth: bool = True) -> QuantizedWeight:
    """Layers over the same ``inputs`` ``[tokens, in_features]`` as one int8 weight, their outputs side by side.

    ``smooth``: for rows that are quantized too.
    """
    weight = torch.cat([linear.weight.detach().float() for linear in linears])
    biases: list[Tensor] = [
        linear.weight.new_zeros(len(linear.weight)) if linear.bias is None else linear.bias for linear in linears
    ]
    factor = _smoothing(weight, inputs) if smooth else torch.ones(weight.shape[1])
    moved = weight * factor
    scale = moved.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / LEVELS
    values = _round_columns(moved, scale, inputs / factor)
    return QuantizedWeight(
        values=values.to(torch.int8).contiguous(),
        scale=scale,
        sums=scale * values.sum(1),
        bias=torch.cat(biases).detach().float().contiguous(),
        smooth=1 / factor,
    )


def _smoothing(weight: Tensor, inputs: Tensor) -> Tensor:
    """Factors of the weight's columns, ``[in_features]``; activations are divided by them."""
    seen = inputs.abs().amax(0)
    seen = seen.clamp(min=float(LEAST_SEEN * seen.median().clamp(min=1e-5)))
    column = weight.abs().amax(0)
    column = column.clamp(min=float(1e-3 * column.max().clamp(min=1e-12)))
    factor: Tensor = seen**SHARE / column ** (1 - SHARE)
    return factor


def _round(values: Tensor, scale: Tensor) -> Tensor:
    return (values / scale).round().clamp(-LEVELS, LEVELS)


def _round_columns(weight: Tensor, scale: Tensor, inputs: Tensor) -> Tensor:
    """Each column's rounding error is made up for by the columns after it, as the inputs' second moments tell."""
    width = weight.shape[1]
    moments = inputs.T @ inputs / len(inputs)
    moments += (DAMPING * moments.diagonal().mean()).clamp(min=1e-9) * torch.eye(width)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(moments))
    step = torch.linalg.cholesky(inverse, upper=True)
    left, values = weight.clone(), torch.empty_like(weight)
    for start in range(0, width, COLUMNS_AT_ONCE):
        stop = min(start + COLUMNS_AT_ONCE, width)
        errors = torch.empty(len(weight), stop - start)
        for column in range(start, stop):
            values[:, column] = _round(left[:, column], scale)
            error = (left[:, column] - values[:, column] * scale) / step[column, column]
            errors[:, column - start] = error
            left[:, column + 1 : stop] -= error[:, None] * step[column, column + 1 : stop]
        left[:, stop:] -= errors @ step[start:stop, stop:]
    return values
