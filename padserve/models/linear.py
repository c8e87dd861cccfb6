"""Linear layers with their weight packed once for the processor.

oneDNN's packed matrix product measured 100 to 113 GFLOP/s on one Zen 4 core in float32 where ``F.linear`` gave 70 to
100, and it takes the activation or the residual sum as an epilogue. Elsewhere (no oneDNN, a GPU) it is ``F.linear``.
"""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FusedActivation = Literal["none", "gelu", "gelu_tanh", "relu", "tanh"]
_EAGER: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "tanh": torch.tanh,
}


def can_pack(weight: Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.bfloat16)
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


class PackedLinear(nn.Module):
    """``activation(x @ weight.T + bias)``, and ``add`` with a residual; x ``[rows, in_features]``."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: FusedActivation = "none") -> None:
        super().__init__()
        self.in_features, self.out_features = weight.shape[1], weight.shape[0]
        self.activation = activation
        self.packed = can_pack(weight)
        if self.packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), 256)
        self.weight = weight.detach()
        self.bias = None if bias is None else bias.detach().contiguous()
        self._attr = "gelu" if activation == "gelu_tanh" else activation
        self._algorithm = {"gelu": "none", "gelu_tanh": "tanh"}.get(activation, "")

    @classmethod
    def of(cls, linear: nn.Linear, activation: FusedActivation = "none") -> "PackedLinear":
        return cls(linear.weight, linear.bias, activation)

    @classmethod
    def fused(cls, *linears: nn.Linear) -> "PackedLinear":
        """Several layers over the same input as one product; the outputs stand side by side."""
        biases: list[Tensor] = [
            layer.bias if layer.bias is not None else layer.weight.new_zeros(len(layer.weight)) for layer in linears
        ]
        weights: list[Tensor] = [layer.weight for layer in linears]
        return cls(torch.cat(weights), torch.cat(biases))

    def forward(self, x: Tensor) -> Tensor:
        if self.packed:
            attr, algorithm = self._attr, self._algorithm
            output: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, attr, [], algorithm)
            return output
        return _EAGER[self.activation](F.linear(x, self.weight, self.bias))

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """``residual + x @ weight.T + bias``."""
        if self.packed:
            output: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, self.bias, "add")
            return output
        return F.linear(x, self.weight, self.bias) + residual


Replaced = list[tuple[nn.Module, str, nn.Linear]]
"""Parent, name and the layer that stood there."""


def pack_linears(module: nn.Module) -> Replaced:
    """Replace every ``nn.Linear`` in place whose weight nothing else holds; `restore` takes it back."""
    owners: dict[int, int] = {}
    for child in module.modules():
        for parameter in child.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    replaced = []
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and owners[id(child.weight)] == 1 and can_pack(child.weight):
                setattr(parent, name, PackedLinear.of(child))
                replaced.append((parent, name, child))
    return replaced


def restore(replaced: Replaced) -> None:
    for parent, name, linear in replaced:
        setattr(parent, name, linear)
