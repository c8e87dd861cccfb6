"""Packed weights against plain linear layers, and what may not be packed."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from padserve.models.linear import PackedLinear, can_pack, pack_linears, restore

EAGER: dict[str, Any] = {
    "none": lambda x: x,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "tanh": torch.tanh,
}
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 6e-2}


def linear(inputs: int, outputs: int, bias: bool = True, dtype: torch.dtype = torch.float32) -> nn.Linear:
    torch.manual_seed(inputs * 1000 + outputs)
    return nn.Linear(inputs, outputs, bias=bias).to(dtype).requires_grad_(False)


def rows(count: int, width: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(count)).to(dtype)


def unpacked(layer: PackedLinear, plain: nn.Linear) -> PackedLinear:
    """The same layer as it is where weights cannot be packed."""
    twin = copy.copy(layer)
    twin.packed, twin.weight = False, plain.weight
    return twin


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", EAGER)
@pytest.mark.parametrize(
    ("count", "inputs", "outputs", "bias"), [(1, 7, 5, True), (33, 48, 3, False), (130, 31, 65, True)]
)
def test_linear_and_activation(
    count: int, inputs: int, outputs: int, bias: bool, activation: Any, dtype: torch.dtype
) -> None:
    plain = linear(inputs, outputs, bias, dtype)
    packed = PackedLinear.of(plain, activation)
    x = rows(count, inputs, dtype)
    want = EAGER[activation](plain.float()(x.float()))
    plain.to(dtype)
    for layer in (packed, unpacked(packed, plain)):
        torch.testing.assert_close(layer(x).float(), want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("bias", [True, False])
def test_add_takes_the_residual_without_changing_it(bias: bool) -> None:
    plain = linear(24, 16, bias)
    packed = PackedLinear.of(plain)
    x, residual = rows(9, 24), rows(9, 16)
    before = residual.clone()
    for layer in (packed, unpacked(packed, plain)):
        torch.testing.assert_close(layer.add(x, residual), plain(x) + residual)
        assert torch.equal(residual, before)


def test_several_layers_as_one_product() -> None:
    layers = [linear(16, 8), linear(16, 12, bias=False), linear(16, 4)]
    x = rows(5, 16)
    want = torch.cat([layer(x) for layer in layers], -1)
    torch.testing.assert_close(PackedLinear.fused(*layers)(x), want)


@pytest.mark.parametrize("shape", [(0, 16), (1, 0, 16), (2, 3, 16)])
def test_no_rows_and_more_dimensions(shape: tuple[int, ...]) -> None:
    plain = linear(16, 8)
    x = torch.ones(shape)
    torch.testing.assert_close(PackedLinear.of(plain)(x), plain(x))


def test_a_row_does_not_depend_on_the_others() -> None:
    """Poison in one row stays in it, and more rows change nothing beyond rounding."""
    packed = PackedLinear.of(linear(48, 32), "gelu")
    x = rows(67, 48)
    crowd = packed(x)
    torch.testing.assert_close(torch.cat([packed(row[None]) for row in x]), crowd, rtol=1e-5, atol=1e-6)
    x[5] = float("nan")
    poisoned = packed(x)
    kept = [row for row in range(67) if row != 5]
    assert torch.equal(poisoned[kept], crowd[kept])


class Tied(nn.Module):
    """A decoder that shares its weight with the embeddings, as masked language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(10, 4)
        self.up, self.shared = nn.Linear(4, 4), nn.Linear(4, 4)
        self.again = nn.ModuleList([self.shared])
        self.decoder = nn.Linear(4, 10)
        self.decoder.weight = self.embeddings.weight
        self.nested = nn.Sequential(nn.Linear(4, 4), nn.Bilinear(4, 4, 4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.again[0](self.shared(self.up(self.embeddings(ids))))
        logits: torch.Tensor = self.decoder(self.nested[0](hidden))
        return logits


def test_tied_weights_are_left_alone_and_the_model_still_gives_the_same() -> None:
    torch.manual_seed(0)
    model = Tied().requires_grad_(False)
    ids = torch.arange(10)
    want, embeddings = model(ids), model.embeddings.weight.clone()
    replaced = pack_linears(model)
    assert isinstance(model.decoder, nn.Linear)
    assert model.decoder.weight is model.embeddings.weight
    assert torch.equal(model.embeddings.weight, embeddings)
    assert isinstance(model.up, PackedLinear)
    assert isinstance(model.nested[0], PackedLinear)
    torch.testing.assert_close(model(ids), want)
    restore(replaced)
    assert not any(isinstance(module, PackedLinear) for module in model.modules())
    assert torch.equal(model(ids), want)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_what_the_processor_cannot_pack_stays_plain(dtype: torch.dtype) -> None:
    assert not can_pack(torch.ones(2, 2, dtype=dtype))
    model = nn.Sequential(linear(4, 4, dtype=dtype))
    assert pack_linears(model) == []
    x = rows(3, 4, dtype)
    torch.testing.assert_close(PackedLinear.of(model[0], "relu")(x), model(x).relu())
