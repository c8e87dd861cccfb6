"""The kernel against its definition, and the definition against torch's own GELU."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from padserve_kernels.bias_gelu import Approximate, bias_gelu
from padserve_kernels.bias_gelu.reference import bias_gelu_reference
from padserve_kernels.bias_gelu.triton import bias_gelu_triton

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}
SHAPES = [(1, 1), (5, 37), (3, 64), (2, 1025), (2, 3000)]
FORMS: list[Approximate] = ["none", "tanh"]


def make(rows: int, dim: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """x and bias, each within memory that is NaN."""
    generator = torch.Generator().manual_seed(rows + dim)
    x, bias = 3 * torch.randn(rows, dim, generator=generator), torch.randn(dim, generator=generator)
    return poisoned(x.to(device, dtype)), poisoned(bias.to(device, dtype))


def poisoned(tensor: Tensor) -> Tensor:
    """The same numbers as a view that NaN surrounds on every side."""
    wide = tensor.new_full([size + 6 for size in tensor.shape], float("nan"))
    view = wide[tuple(slice(3, size + 3) for size in tensor.shape)]
    return view.copy_(tensor)


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got.float(), want.float(), atol=TOLERANCE[got.dtype], rtol=TOLERANCE[got.dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(("rows", "dim"), SHAPES)
@pytest.mark.parametrize("tanh", [False, True], ids=["erf", "tanh"])
def test_kernel_equals_its_definition(
    dtype: torch.dtype, rows: int, dim: int, tanh: bool, device: torch.device
) -> None:
    x, bias = make(rows, dim, dtype, device)
    got = bias_gelu_triton(x, bias, tanh)
    assert got.dtype == dtype
    close(got, bias_gelu_reference(x, bias, tanh))


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("approximate", FORMS)
def test_definition_equals_torch(dtype: torch.dtype, approximate: Approximate, device: torch.device) -> None:
    x, bias = make(9, 37, dtype, device)
    want = F.gelu(x.float() + bias.float(), approximate=approximate)
    close(bias_gelu_reference(x, bias, approximate == "tanh"), want)


@pytest.mark.parametrize("approximate", FORMS)
def test_the_whole_range(approximate: Approximate, device: torch.device) -> None:
    ends = torch.tensor([-1e12, -1e4, -0.0, 0.0, 1e4, 1e12, float("nan")])
    x = torch.cat([torch.linspace(-12, 12, 2001), ends]).to(device)[None]
    got = bias_gelu(x, torch.zeros(x.shape[1], device=device), approximate)
    torch.testing.assert_close(got, F.gelu(x, approximate=approximate), atol=2e-6, rtol=2e-6, equal_nan=True)


@pytest.mark.parametrize("approximate", FORMS)
def test_the_sum_is_not_rounded(approximate: Approximate, device: torch.device) -> None:
    """In bfloat16 512 + 1 is 512; here the 1 counts before -512 is gone."""
    x = torch.tensor([[513.0]], device=device)
    bias = torch.tensor([-512.0], dtype=torch.bfloat16, device=device)
    close(bias_gelu(x, bias, approximate), F.gelu(torch.ones(1, 1, device=device), approximate=approximate))


@pytest.mark.parametrize(("rows", "dim"), [(0, 37), (4, 0), (0, 0)])
def test_nothing_to_do(rows: int, dim: int, device: torch.device) -> None:
    assert bias_gelu(*make(rows, dim, torch.float32, device)).shape == (rows, dim)


def test_shapes_that_do_not_fit_are_refused(device: torch.device) -> None:
    x, bias = make(4, 8, torch.float32, device)
    with pytest.raises(ValueError, match=r"\[rows, dim\]"):
        bias_gelu(x, bias[:7])
    with pytest.raises(ValueError, match=r"\[rows, dim\]"):
        bias_gelu(x[0], bias)
    with pytest.raises(ValueError, match="contiguous"):
        bias_gelu(x[:, ::2], bias[:4])
    with pytest.raises(ValueError, match="'none' or 'tanh'"):
        bias_gelu(x, bias, "erf")  # type: ignore[arg-type]
