"""The kernel against its definition, and the definition against torch's own means run on one sequence at a time."""

from itertools import accumulate

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from padserve_kernels.mean_pool_normalize import mean_pool_normalize
from padserve_kernels.mean_pool_normalize.reference import mean_pool_normalize_reference
from padserve_kernels.mean_pool_normalize.triton import mean_pool_normalize_triton

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}
RAGGED = [1, 5, 0, 37, 64, 65, 2, 0]


def make(lengths: list[int], dim: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """A stream within memory that is NaN, and its borders."""
    generator = torch.Generator().manual_seed(sum(lengths) + dim)
    hidden = torch.randn(sum(lengths), dim, generator=generator) + 0.1
    return poisoned(hidden.to(device, dtype)), torch.tensor([0, *accumulate(lengths)], device=device)


def poisoned(tensor: Tensor) -> Tensor:
    """The same numbers as a view that NaN surrounds on every side."""
    wide = tensor.new_full([size + 6 for size in tensor.shape], float("nan"))
    view = wide[tuple(slice(3, size + 3) for size in tensor.shape)]
    return view.copy_(tensor)


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got.float(), want.float(), atol=TOLERANCE[got.dtype], rtol=TOLERANCE[got.dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("dim", [1, 37, 64, 385, 1500])
@pytest.mark.parametrize("normalize", [False, True], ids=["mean", "unit"])
def test_kernel_equals_its_definition(dtype: torch.dtype, dim: int, normalize: bool, device: torch.device) -> None:
    arguments = (*make(RAGGED, dim, dtype, device), normalize, 1e-12)
    got = mean_pool_normalize_triton(*arguments)
    assert got.dtype == dtype
    close(got, mean_pool_normalize_reference(*arguments))


@pytest.mark.parametrize("normalize", [False, True], ids=["mean", "unit"])
def test_definition_equals_torch_one_sequence_at_a_time(normalize: bool, device: torch.device) -> None:
    hidden, cu_seqlens = make([3, 1, 20], 37, torch.float32, device)
    got = mean_pool_normalize_reference(hidden, cu_seqlens, normalize, 1e-12)
    for row, sequence in zip(got, hidden.split([3, 1, 20]), strict=True):
        want = sequence.mean(0)
        close(row, F.normalize(want, dim=0) if normalize else want)


def test_an_empty_sequence_gives_zeros(device: torch.device) -> None:
    hidden, cu_seqlens = make(RAGGED, 37, torch.float16, device)
    for normalize in (False, True):
        got = mean_pool_normalize(hidden, cu_seqlens, normalize)
        assert (got[[2, 7]] == 0).all()
        assert torch.isfinite(got).all()


def test_a_mean_of_zero_stays_zero(device: torch.device) -> None:
    hidden = torch.tensor([[1.0, -2.0], [-1.0, 2.0]], device=device)
    assert (mean_pool_normalize(hidden, torch.tensor([0, 2], device=device)) == 0).all()


def test_sums_do_not_overflow_or_stall_in_half_precision(device: torch.device) -> None:
    """300 rows of 1000 sum to more than float16 holds; 700 ones sum past where bfloat16 still counts by one."""
    cu_seqlens = torch.tensor([0, 300], device=device)
    large = torch.full((300, 5), 1000.0, dtype=torch.float16, device=device)
    close(mean_pool_normalize(large, cu_seqlens, normalize=False), large[:1])
    ones = torch.ones(700, 5, dtype=torch.bfloat16, device=device)
    close(mean_pool_normalize(ones, torch.tensor([0, 700], device=device), normalize=False), ones[:1])


def test_rows_that_no_sequence_owns_are_never_read(device: torch.device) -> None:
    hidden, _ = make([30], 37, torch.float32, device)
    hidden[:4] = hidden[20:] = float("nan")
    cu_seqlens = torch.tensor([4, 13, 20], dtype=torch.int32, device=device)
    got = mean_pool_normalize(hidden, cu_seqlens)
    close(got, mean_pool_normalize_reference(hidden[4:20], cu_seqlens - 4, True, 1e-12))


def test_garbage_of_a_neighbour_does_not_leak(device: torch.device) -> None:
    hidden, cu_seqlens = make([7, 20, 3], 37, torch.float32, device)
    want = mean_pool_normalize(hidden, cu_seqlens)
    hidden[7:27] = float("nan")
    got = mean_pool_normalize(hidden, cu_seqlens)
    assert torch.equal(got[[0, 2]], want[[0, 2]])


@pytest.mark.parametrize(
    "lengths", [[], [0], [0, 4, 0], [1], [2] * 100], ids=["none", "empty", "empties", "one", "many"]
)
def test_odd_numbers_of_sequences(lengths: list[int], device: torch.device) -> None:
    hidden, cu_seqlens = make(lengths, 16, torch.float32, device)
    got = mean_pool_normalize(hidden, cu_seqlens)
    assert got.shape == (len(lengths), 16)
    close(got, mean_pool_normalize_reference(hidden, cu_seqlens, True, 1e-12))


def test_shapes_that_do_not_fit_are_refused(device: torch.device) -> None:
    hidden, cu_seqlens = make([4], 8, torch.float32, device)
    with pytest.raises(ValueError, match=r"\[total_tokens, dim\]"):
        mean_pool_normalize(hidden[0], cu_seqlens)
    with pytest.raises(ValueError, match="contiguous"):
        mean_pool_normalize(hidden[:, ::2], cu_seqlens)
    with pytest.raises(ValueError, match=r"\[num_seqs \+ 1\]"):
        mean_pool_normalize(hidden, cu_seqlens[:0])
    with pytest.raises(ValueError, match="ints"):
        mean_pool_normalize(hidden, cu_seqlens.float())
