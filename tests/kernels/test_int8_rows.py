"""Int8 rows: the definition against plain float arithmetic, the compiled epilogues against the definition."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from padserve_kernels.int8_rows import QuantizedWeight, linear, linear_activation, linear_norm, quantize
from padserve_kernels.int8_rows.layout import Epilogues, QuantizedRows, RowActivation
from padserve_kernels.int8_rows.numba import Compiled
from padserve_kernels.int8_rows.reference import Reference

SHAPES = [(0, 8, 16), (1, 1, 1), (1, 33, 7), (17, 64, 48), (40, 384, 96)]
ACTIVATIONS: list[RowActivation] = ["gelu", "gelu_tanh", "relu"]


def make_weight(rows: int, columns: int, seed: int = 0) -> tuple[Tensor, QuantizedWeight]:
    """A weight matrix and its int8 form, with uneven column factors."""
    generator = torch.Generator().manual_seed(seed)
    plain = torch.randn(rows, columns, generator=generator) / columns**0.5
    smooth = 0.25 + torch.rand(columns, generator=generator)
    moved = plain / smooth
    scale = moved.abs().amax(1) / 127
    values = torch.round(moved / scale[:, None]).to(torch.int8)
    bias = torch.randn(rows, generator=generator)
    return plain, QuantizedWeight(values, scale, scale * values.float().sum(1), bias, smooth)


def make_rows(count: int, width: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, width, generator=generator) * torch.logspace(-2, 1, max(count, 1))[:count, None]
    return x + 0.3


def same(got: QuantizedRows, want: QuantizedRows) -> None:
    """Equal but for roundings that fall on a border."""
    torch.testing.assert_close(got.scale, want.scale, rtol=1e-5, atol=1e-12)
    torch.testing.assert_close(got.middle, want.middle, rtol=1e-4, atol=1e-6)
    apart = (got.values.int() - want.values.int()).abs()
    assert apart.numel() == 0 or (apart.max() <= 1 and (apart > 0).float().mean() < 0.02)


@pytest.mark.parametrize(("count", "width", "out"), SHAPES)
def test_quantized_rows_stand_for_the_rows(count: int, width: int, out: int) -> None:
    x, smooth = make_rows(count, width), 0.5 + torch.rand(width)
    for way in (Reference(), Compiled()):
        rows = way.quantize(x, smooth)
        assert rows.values.dtype == torch.int8
        back = rows.values * rows.scale[:, None] + rows.middle[:, None]
        assert ((back - x * smooth).abs() <= 0.501 * rows.scale[:, None] + 1e-6).all()
    same(Compiled().quantize(x, smooth), Reference().quantize(x, smooth))


@pytest.mark.parametrize(("count", "width", "out"), SHAPES)
def test_linear_is_near_the_float_product(count: int, width: int, out: int) -> None:
    plain, weight = make_weight(out, width)
    x = make_rows(count, width)
    want = F.linear(x, plain, weight.bias)
    got = linear(quantize(x, weight.smooth), weight)
    assert got.shape == want.shape
    if count:
        assert ((got - want).norm(dim=1) <= 0.03 * want.norm(dim=1) + 1e-3).all()


@pytest.mark.parametrize(("count", "width", "out"), SHAPES)
def test_epilogues_equal_their_definition(count: int, width: int, out: int) -> None:
    _, weight = make_weight(out, width)
    rows = Reference().quantize(make_rows(count, width), weight.smooth)
    products, smooth = weight.product(rows), 0.5 + torch.rand(out)
    norm = (torch.rand(out), torch.randn(out), 1e-5)
    residual = torch.randn(count, out)
    compiled: Epilogues = Compiled()
    reference: Epilogues = Reference()
    torch.testing.assert_close(
        compiled.dequantize(products, rows, weight), reference.dequantize(products, rows, weight), rtol=1e-5, atol=1e-5
    )
    for activation in ACTIVATIONS:
        given = (products, rows, weight, activation, smooth)
        same(compiled.activate(*given), reference.activate(*given))
    if out > 1:
        hidden, next_rows = compiled.add_norm(products, rows, weight, residual, *norm, smooth)
        want, want_rows = reference.add_norm(products, rows, weight, residual, *norm, smooth)
        torch.testing.assert_close(hidden, want, rtol=1e-4, atol=1e-4)
        same(next_rows, want_rows)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_over_their_whole_range(activation: RowActivation) -> None:
    """Through a weight that is one, so that the activation is all that is seen."""
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([-1e4, 1e4, 0.0])])
    products = torch.zeros((len(x), 1), dtype=torch.int32)
    rows = QuantizedRows(torch.zeros((len(x), 1), dtype=torch.int8), torch.ones(len(x)), x)
    one = torch.ones(1)
    weight = QuantizedWeight(torch.ones((1, 1), dtype=torch.int8), one, one, torch.zeros(1), one)
    got = Compiled().activate(products, rows, weight, activation, one)
    want = F.relu(x) if activation == "relu" else F.gelu(x, approximate="tanh" if "tanh" in activation else "none")
    torch.testing.assert_close(got.middle, want, rtol=2e-6, atol=2e-6)


def test_a_row_does_not_depend_on_the_others() -> None:
    _, weight = make_weight(24, 40)
    x = make_rows(50, 40)
    whole = linear(quantize(x, weight.smooth), weight)
    for row in (0, 7, 49):
        assert torch.equal(linear(quantize(x[row : row + 1], weight.smooth), weight)[0], whole[row])


@pytest.mark.parametrize("bad", [float("nan"), -float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_so_and_alone(bad: float) -> None:
    _, weight = make_weight(24, 40)
    x = make_rows(5, 40)
    x[2, 3] = bad
    smooth = torch.ones(24)
    for way in (Reference(), Compiled()):
        rows = way.quantize(x, weight.smooth)
        plain = way.dequantize(weight.product(rows), rows, weight)
        active = way.activate(weight.product(rows), rows, weight, "gelu", smooth)
        for finite in (plain.isfinite().all(1), (active.scale + active.middle).isfinite()):
            assert finite.tolist() == [True, True, False, True, True]


def test_a_row_of_equal_numbers() -> None:
    for way in (Reference(), Compiled()):
        rows = way.quantize(torch.tensor([[2.5] * 8, [0.0] * 8]), torch.ones(8))
        assert rows.values.eq(0).all()
        assert rows.scale.tolist() == [0, 0]
        assert rows.middle.tolist() == [2.5, 0]


def test_views_are_taken() -> None:
    _, weight = make_weight(16, 20)
    x = make_rows(6, 40)[:, ::2]
    torch.testing.assert_close(
        linear(quantize(x, weight.smooth), weight), linear(quantize(x.clone(), weight.smooth), weight)
    )


def test_shapes_that_do_not_fit() -> None:
    _, weight = make_weight(16, 20)
    rows = quantize(make_rows(3, 20), weight.smooth)
    with pytest.raises(ValueError, match="smooth"):
        quantize(make_rows(3, 20), torch.ones(19))
    with pytest.raises(ValueError, match="float32"):
        quantize(make_rows(3, 20).double(), weight.smooth)
    with pytest.raises(ValueError, match="do not fit"):
        linear(quantize(make_rows(3, 10), torch.ones(10)), weight)
    with pytest.raises(ValueError, match="do not fit"):
        linear_activation(quantize(make_rows(3, 10), torch.ones(10)), weight, "gelu", torch.ones(16))
    with pytest.raises(ValueError, match="residual"):
        linear_norm(rows, weight, torch.zeros(2, 16), torch.ones(16), torch.ones(16), 1e-5, torch.ones(16))
