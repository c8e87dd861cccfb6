"""The kernel against its definition, and the definition against torch's own attention run on one sequence at a time."""

from itertools import accumulate

import pytest
import torch
import torch.nn.functional as F

from padserve_kernels.varlen_attention import varlen_attention
from padserve_kernels.varlen_attention.reference import varlen_attention_reference
from padserve_kernels.varlen_attention.triton import varlen_attention_triton

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
RAGGED = [1, 5, 37, 64, 65, 2, 131]


def make(
    lengths: list[int], heads: int, kv_heads: int, dim: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(sum(lengths) + dim)
    total = sum(lengths)
    shapes = [(total, heads, dim), (total, kv_heads, dim), (total, kv_heads, dim)]
    tensors = [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]
    return *tensors, torch.tensor([0, *accumulate(lengths)], device=device)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got.float(), want.float(), atol=TOLERANCE[got.dtype], rtol=TOLERANCE[got.dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("window", [None, 9], ids=["global", "window9"])
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
def test_kernel_equals_its_definition(
    dtype: torch.dtype, causal: bool, window: int | None, with_bias: bool, device: torch.device
) -> None:
    query, key, value, cu_seqlens = make(RAGGED, 4, 2, 32, dtype, device)
    bias = torch.randn(4, max(RAGGED), max(RAGGED), device=device) if with_bias else None
    arguments = (query, key, value, cu_seqlens, 0.2, causal, window, bias)
    close(varlen_attention_triton(*arguments), varlen_attention_reference(*arguments))


@pytest.mark.parametrize("dim", [32, 40, 64, 96, 128, 256])
def test_head_sizes(dim: int, device: torch.device) -> None:
    query, key, value, cu_seqlens = make([3, 33, 1], 2, 1, dim, torch.float32, device)
    close(
        varlen_attention(query, key, value, cu_seqlens),
        varlen_attention_reference(query, key, value, cu_seqlens, dim**-0.5),
    )


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_definition_equals_torch_one_sequence_at_a_time(causal: bool, device: torch.device) -> None:
    query, key, value, cu_seqlens = make(RAGGED, 3, 3, 16, torch.float32, device)
    got = varlen_attention_reference(query, key, value, cu_seqlens, 0.25, causal)
    for start, stop in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        q, k, v = (tensor[start:stop].transpose(0, 1) for tensor in (query, key, value))
        want = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.25).transpose(0, 1)
        close(got[start:stop], want)


def test_garbage_of_a_neighbour_does_not_leak(device: torch.device) -> None:
    """NaN in one sequence, the last of the stream included, leaves the others as they were."""
    lengths = [7, 20, 3]
    query, key, value, cu_seqlens = make(lengths, 2, 2, 32, torch.float32, device)
    want = varlen_attention(query, key, value, cu_seqlens)
    for tensor in (query, key, value):
        tensor[7:27] = float("nan")
    got = varlen_attention(query, key, value, cu_seqlens)
    close(got[:7], want[:7])
    close(got[27:], want[27:])


def test_rows_that_no_sequence_owns_are_zero_and_garbage_there_is_never_read(device: torch.device) -> None:
    query, key, value, _ = make([30], 2, 2, 32, torch.float32, device)
    for tensor in (query, key, value):
        tensor[20:] = float("nan")
    cu_seqlens = torch.tensor([0, 13, 20], device=device)
    got = varlen_attention(query, key, value, cu_seqlens)
    assert torch.isfinite(got).all()
    assert (got[20:] == 0).all()


@pytest.mark.parametrize(
    "lengths", [[], [0], [0, 4, 0], [1], [2] * 300], ids=["none", "empty", "empties", "one", "many"]
)
def test_odd_numbers_of_sequences(lengths: list[int], device: torch.device) -> None:
    query, key, value, cu_seqlens = make(lengths, 2, 2, 16, torch.float32, device)
    got = varlen_attention(query, key, value, cu_seqlens)
    assert got.shape == query.shape
    close(got, varlen_attention_reference(query, key, value, cu_seqlens, 0.25))


def test_views_of_one_fused_projection(device: torch.device) -> None:
    """Query, key and value as strided views of one ``[total, 3, heads, dim]`` product."""
    fused = torch.randn(41, 3, 4, 32, device=device)
    query, key, value = fused.unbind(1)
    cu_seqlens = torch.tensor([0, 40, 41], device=device)
    got = varlen_attention(query, key, value, cu_seqlens)
    want = varlen_attention(query.contiguous(), key.contiguous(), value.contiguous(), cu_seqlens)
    close(got, want)


def test_shapes_that_do_not_fit_are_refused(device: torch.device) -> None:
    query, key, value, cu_seqlens = make([4], 3, 2, 16, torch.float32, device)
    with pytest.raises(ValueError, match="do not fit"):
        varlen_attention(query, key, value, cu_seqlens)
    with pytest.raises(ValueError, match=r"\[tokens, heads, dim\]"):
        varlen_attention(query[0], key, value, cu_seqlens)
