"""The kernel against its definition, and the definition against torch's own attention under a mask tensor."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from padserve_kernels.masked_attention import Padding, masked_attention
from padserve_kernels.masked_attention.reference import masked_attention_reference
from padserve_kernels.masked_attention.triton import masked_attention_triton

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
LENGTHS = [70, 0, 1, 37]
SIDES: list[Padding] = ["left", "right"]


@pytest.fixture
def poisoned_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that the kernel is given for its output is NaN, so that a slot it leaves out shows."""
    monkeypatch.setattr(torch, "empty_like", lambda tensor: torch.full_like(tensor, float("nan")))


def make(
    lengths: list[int],
    length: int,
    heads: int,
    kv_heads: int,
    dim: int,
    dtype: torch.dtype,
    device: torch.device,
    left: bool = False,
) -> tuple[Tensor, ...]:
    """Query, key, value with NaN in their padding, and the lengths."""
    generator = torch.Generator().manual_seed(sum(lengths) + dim)
    padding = ~tokens(lengths, length, left)[:, None, :, None]
    tensors = [
        torch.randn(len(lengths), count, length, dim, generator=generator)
        .masked_fill(padding, float("nan"))
        .to(device, dtype)
        for count in (heads, kv_heads, kv_heads)
    ]
    return *tensors, torch.tensor(lengths, dtype=torch.int64, device=device)


def tokens(lengths: list[int], length: int, left: bool) -> Tensor:
    """``[batch, length]``, True at tokens."""
    counts = torch.tensor(lengths, dtype=torch.int64)[:, None]
    slots = torch.arange(length)[None, :]
    return slots >= length - counts if left else slots < counts


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got.float(), want.float(), atol=TOLERANCE[got.dtype], rtol=TOLERANCE[got.dtype])


@pytest.mark.usefixtures("poisoned_empty")
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_kernel_equals_its_definition(dtype: torch.dtype, causal: bool, left: bool, device: torch.device) -> None:
    query, key, value, lengths = make(LENGTHS, 70, 2, 1, 32, dtype, device, left)
    arguments = (query, key, value, lengths, 0.2, causal, left)
    got = masked_attention_triton(*arguments)
    assert got.dtype == dtype
    close(got, masked_attention_reference(*arguments))


@pytest.mark.parametrize("dim", [1, 24, 40, 64, 96, 256])
def test_head_sizes(dim: int, device: torch.device) -> None:
    query, key, value, lengths = make([3, 33, 1], 33, 2, 1, dim, torch.float32, device)
    close(
        masked_attention(query, key, value, lengths),
        masked_attention_reference(query, key, value, lengths, dim**-0.5),
    )


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_definition_equals_torch_under_a_mask(causal: bool, left: bool, device: torch.device) -> None:
    query, key, value, lengths = make(LENGTHS, 70, 4, 2, 16, torch.float32, device, left)
    real = tokens(LENGTHS, 70, left).to(device)
    mask = real[:, None, :, None] & real[:, None, None, :]
    if causal:
        mask = mask & torch.ones(70, 70, dtype=torch.bool, device=device).tril()
    finite = [torch.nan_to_num(tensor) for tensor in (query, key, value)]
    want = F.scaled_dot_product_attention(*finite, attn_mask=mask, scale=0.25, enable_gqa=True)
    want = want.masked_fill(~real[:, None, :, None], 0.0)
    close(masked_attention_reference(query, key, value, lengths, 0.25, causal, left), want)


@pytest.mark.parametrize("padding", SIDES)
def test_padding_comes_out_as_zeros(padding: Padding, device: torch.device) -> None:
    query, key, value, lengths = make([33, 0, 1], 40, 1, 1, 16, torch.float32, device, padding == "left")
    got = masked_attention(query, key, value, lengths, padding=padding)
    real = tokens([33, 0, 1], 40, padding == "left").to(device)
    assert (got.transpose(1, 2)[~real] == 0).all()
    assert torch.isfinite(got).all()


@pytest.mark.parametrize("padding", SIDES)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_a_row_comes_out_as_it_does_alone(padding: Padding, causal: bool, device: torch.device) -> None:
    query, key, value, lengths = make([5, 40], 40, 1, 1, 16, torch.float32, device, padding == "left")
    got = masked_attention(query, key, value, lengths, None, causal, padding)
    slots = slice(35, 40) if padding == "left" else slice(0, 5)
    alone = [tensor[:1, :, slots] for tensor in (query, key, value)]
    close(got[:1, :, slots], masked_attention(*alone, lengths[:1], None, causal, padding))


@pytest.mark.parametrize(
    ("lengths", "length"), [([], 7), ([0], 0), ([0, 0], 9), ([1], 1)], ids=["none", "no slots", "empties", "one"]
)
@pytest.mark.parametrize("padding", SIDES)
def test_odd_batches(lengths: list[int], length: int, padding: Padding, device: torch.device) -> None:
    query, key, value, counts = make(lengths, length, 2, 2, 16, torch.float32, device, padding == "left")
    got = masked_attention(query, key, value, counts, padding=padding)
    assert got.shape == query.shape
    close(got, masked_attention_reference(query, key, value, counts, 0.25, False, padding == "left"))


@pytest.mark.parametrize("padding", SIDES)
def test_lengths_beyond_the_batch_are_cut(padding: Padding, device: torch.device) -> None:
    query, key, value, _ = make([9, 9], 9, 2, 2, 16, torch.float32, device)
    beyond = torch.tensor([12, -1], dtype=torch.int32, device=device)
    within = torch.tensor([9, 0], device=device)
    close(
        masked_attention(query, key, value, beyond, padding=padding),
        masked_attention_reference(query, key, value, within, 0.25, False, padding == "left"),
    )


def test_views_of_one_fused_projection(device: torch.device) -> None:
    """Query, key and value as strided views of one ``[batch, length, 3, heads, dim]`` product."""
    fused = torch.randn(2, 21, 3, 4, 32, device=device)
    query, key, value = fused.permute(2, 0, 3, 1, 4).unbind(0)
    lengths = torch.tensor([21, 13], device=device)
    got = masked_attention(query, key, value, lengths)
    close(got, masked_attention(query.contiguous(), key.contiguous(), value.contiguous(), lengths))


def test_shapes_that_do_not_fit_are_refused(device: torch.device) -> None:
    query, key, value, lengths = make([4, 2], 4, 3, 2, 16, torch.float32, device)
    with pytest.raises(ValueError, match="do not fit"):
        masked_attention(query, key, value, lengths)
    query = query[:, :2]
    with pytest.raises(ValueError, match="do not fit"):
        masked_attention(query, key[:, :, :3], value[:, :, :3], lengths)
    with pytest.raises(ValueError, match=r"\[batch, heads, length, dim\]"):
        masked_attention(query[0], key, value, lengths)
    with pytest.raises(ValueError, match=r"lengths must be \[2\]"):
        masked_attention(query, key, value, lengths[:1])
    with pytest.raises(ValueError, match="ints"):
        masked_attention(query, key, value, lengths.float())
    with pytest.raises(ValueError, match="contiguous"):
        masked_attention(query[..., ::2], key[..., ::2], value[..., ::2], lengths)
    with pytest.raises(ValueError, match="'left' or 'right'"):
        masked_attention(query, key, value, lengths, padding="middle")  # type: ignore[arg-type]
