"""Int8 weights of decoders, rounded with what sample texts give each product. Rows stay bfloat16.

Of few rows a step takes as long as its weights take to come from memory, so that is where bytes count; rows that were
quantized as well, each by itself, cost SmolLM2-135M a hundred times as much (KL divergence from float32 0.016, against
0.0002 in bfloat16).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from padserve.models.int8 import quantize_linears
from padserve_kernels.int8_rows import QuantizedWeight

MOST_ROWS = 2048
"""Of a product's inputs that are kept."""


class Quantizer:
    """``weigh(*linears)``: layers over the same input as one int8 weight."""

    def __init__(self, inputs: dict[nn.Module, Tensor]) -> None:
        self._inputs = inputs

    def __call__(self, *linears: nn.Linear) -> QuantizedWeight:
        return quantize_linears(linears, self._inputs[linears[0]], smooth=False)


@contextmanager
def watched(model: Any) -> Iterator[dict[nn.Module, Tensor]]:
    """What the linear layers of ``model`` are given while the context lasts, each ``[tokens, in_features]``."""
    seen: dict[nn.Module, list[Tensor]] = {}
    inputs: dict[nn.Module, Tensor] = {}

    def see(module: nn.Module, given: tuple[Any, ...]) -> None:
        seen.setdefault(module, []).append(given[0].detach().float().reshape(-1, given[0].shape[-1]))

    hooks = [module.register_forward_pre_hook(see) for module in model.modules() if isinstance(module, nn.Linear)]
    try:
        yield inputs
    finally:
        for hook in hooks:
            hook.remove()
        inputs.update({module: torch.cat(parts)[:MOST_ROWS] for module, parts in seen.items()})


@torch.inference_mode()
def quantizer_of(model: Any, samples: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Quantizer:
    """``samples``: what an encoder and a decoder are given; of models without encoder the latter counts."""
    with watched(model) as inputs:
        for source, tokens in samples:
            ids = torch.tensor([list(tokens)])
            if model.config.is_encoder_decoder:
                model(input_ids=torch.tensor([list(source)]), decoder_input_ids=ids)
            else:
                model(input_ids=ids)
    return Quantizer(inputs)
