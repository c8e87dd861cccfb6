"""The kernel against its definition, and the definition against torch's own layer norm."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from padserve_kernels.residual_layer_norm import residual_layer_norm
from padserve_kernels.residual_layer_norm.reference import residual_layer_norm_reference
from padserve_kernels.residual_layer_norm.triton import residual_layer_norm_triton

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
SHAPES = [(1, 1), (3, 2), (5, 37), (17, 64), (2, 385), (4, 1500)]


def make(rows: int, dim: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    """x, residual, weight, bias, each within memory that is NaN."""
    generator = torch.Generator().manual_seed(rows + dim)
    shapes = [(rows, dim), (rows, dim), (dim,), (dim,)]
    return tuple(poisoned(torch.randn(shape, generator=generator).to(device, dtype) + 0.5) for shape in shapes)


def poisoned(tensor: Tensor) -> Tensor:
    """The same numbers as a view that NaN surrounds on every side."""
    wide = tensor.new_full([size + 6 for size in tensor.shape], float("nan"))
    view = wide[tuple(slice(3, size + 3) for size in tensor.shape)]
    return view.copy_(tensor)


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got.float(), want.float(), atol=TOLERANCE[got.dtype], rtol=TOLERANCE[got.dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(("rows", "dim"), SHAPES)
def test_kernel_equals_its_definition(dtype: torch.dtype, rows: int, dim: int, device: torch.device) -> None:
    arguments = (*make(rows, dim, dtype, device), 1e-5)
    got = residual_layer_norm_triton(*arguments)
    assert got.dtype == dtype
    close(got, residual_layer_norm_reference(*arguments))


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_definition_equals_torch(dtype: torch.dtype, device: torch.device) -> None:
    x, residual, weight, bias = make(9, 37, dtype, device)
    want = F.layer_norm(x.float() + residual.float(), (37,), weight.float(), bias.float(), 1e-5)
    close(residual_layer_norm_reference(x, residual, weight, bias, 1e-5), want)


def test_the_sum_is_not_rounded(device: torch.device) -> None:
    """1 is lost where bfloat16 holds 512, yet the norm sees it."""
    x = torch.full((1, 64), 512.0, dtype=torch.bfloat16, device=device)
    residual = torch.tensor([1.0, -1.0] * 32, dtype=torch.bfloat16, device=device)[None]
    one, zero = torch.ones(64, device=device), torch.zeros(64, device=device)
    close(residual_layer_norm(x, residual, one, zero), residual)


def test_a_large_mean_does_not_drown_the_variance(device: torch.device) -> None:
    x, _, weight, bias = make(3, 100, torch.float32, device)
    residual = torch.full_like(x, 4096.0)
    want = F.layer_norm(x.double() + residual.double(), (100,), weight.double(), bias.double())
    torch.testing.assert_close(residual_layer_norm(x, residual, weight, bias, 1e-5), want.float(), atol=5e-3, rtol=5e-3)


def test_parameters_of_another_dtype(device: torch.device) -> None:
    x, residual, _, _ = make(5, 37, torch.bfloat16, device)
    _, _, weight, bias = make(5, 37, torch.float32, device)
    got = residual_layer_norm(x, residual, weight, bias)
    assert got.dtype == torch.bfloat16
    close(got, residual_layer_norm_reference(x, residual, weight, bias, 1e-12))


def test_garbage_of_a_neighbour_does_not_leak(device: torch.device) -> None:
    x, residual, weight, bias = make(5, 37, torch.float32, device)
    want = residual_layer_norm(x, residual, weight, bias)
    x[1:4] = float("nan")
    got = residual_layer_norm(x, residual, weight, bias)
    assert torch.equal(got[[0, 4]], want[[0, 4]])


def test_no_rows(device: torch.device) -> None:
    got = residual_layer_norm(*make(0, 37, torch.float32, device))
    assert got.shape == (0, 37)


def test_shapes_that_do_not_fit_are_refused(device: torch.device) -> None:
    x, residual, weight, bias = make(4, 8, torch.float32, device)
    with pytest.raises(ValueError, match=r"\[rows, dim\]"):
        residual_layer_norm(x, residual[:3], weight, bias)
    with pytest.raises(ValueError, match=r"\[rows, dim\]"):
        residual_layer_norm(x[0], residual[0], weight, bias)
    with pytest.raises(ValueError, match=r"\[rows, dim\]"):
        residual_layer_norm(x[:, :0], residual[:, :0], weight[:0], bias[:0])
    with pytest.raises(ValueError, match=r"must be \[8\]"):
        residual_layer_norm(x, residual, weight[:7], bias)
    with pytest.raises(ValueError, match="contiguous"):
        residual_layer_norm(x[:, ::2], residual[:, ::2], weight[:4], bias[:4])
