"""Packed attention against a masked softmax over the whole stream, in float64."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from padserve.attention.packed import (
    PackedLengths,
    kernel_attention,
    packed_attention,
    packed_attention_forward,
    register,
)

RAGGED = (1, 2, 7, 33, 1, 64, 130, 3)
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


def stream(lengths: tuple[int, ...], dtype: torch.dtype, num_heads: int = 3, head_dim: int = 8) -> list[Tensor]:
    """Query, key and value ``[1, num_heads, total_tokens, head_dim]``, as strided views of one product."""
    generator = torch.Generator().manual_seed(sum(lengths))
    qkv = torch.randn(1, sum(lengths), 3, num_heads, head_dim, generator=generator).to(dtype)
    return list(qkv.permute(2, 0, 3, 1, 4).unbind(0))


def masked_softmax(
    q: Tensor, k: Tensor, v: Tensor, lengths: tuple[int, ...], scale: float, window: int | None
) -> Tensor:
    """The definition: every token against every token of the stream, those out of reach masked."""
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    position = torch.arange(sum(lengths))
    allowed = owner[:, None] == owner[None, :]
    if window is not None:
        allowed &= (position[:, None] - position[None, :]).abs() <= window
    scores = (q.double() @ k.double().transpose(-1, -2)) * scale
    weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1)
    return (weights @ v.double()).transpose(1, 2)


def deviation(got: Tensor, want: Tensor) -> float:
    assert got.shape == want.shape
    return float((got.double() - want).abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lengths", [(1,), (2,), (5,), RAGGED, (1,) * 9, (257, 1), (64, 64, 64)])
def test_equals_masked_softmax(lengths: tuple[int, ...], dtype: torch.dtype) -> None:
    q, k, v = stream(lengths, dtype)
    got = packed_attention(q, k, v, lengths, 0.3)
    assert got.dtype == dtype
    assert deviation(got, masked_softmax(q, k, v, lengths, 0.3, None)) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [0, 1, 3, 8, 31, 32, 33, 64])
def test_window_equals_masked_softmax(window: int, dtype: torch.dtype) -> None:
    """Lengths around the window, its double and the block of queries, where an off-by-one would show."""
    edges = {window, window + 1, window + 2, 2 * window, 2 * window + 1, 3 * window + 1, 31, 32, 33, 64, 65, 97}
    lengths = (*sorted(edge for edge in edges if edge > 0), 1)
    q, k, v = stream(lengths, dtype)
    got = packed_attention(q, k, v, lengths, 0.3, window)
    assert deviation(got, masked_softmax(q, k, v, lengths, 0.3, window)) < TOLERANCE[dtype]


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_poisoned_sequence_leaves_its_neighbours_alone(poison: float, window: int | None) -> None:
    lengths = (5, 40, 1, 40)
    q, k, v = stream(lengths, torch.float32)
    want = packed_attention(q, k, v, lengths, 0.3, window).split(lengths, 1)
    for tensor in (q, k, v):
        tensor[:, :, 5:45] = poison
    got = packed_attention(q, k, v, lengths, 0.3, window).split(lengths, 1)
    assert not torch.isfinite(got[1]).all()
    for index in (0, 2, 3):
        assert torch.equal(got[index], want[index])


@pytest.mark.parametrize("window", [None, 4])
def test_alone_equals_in_the_crowd_bit_for_bit(window: int | None) -> None:
    q, k, v = stream(RAGGED, torch.float32)
    crowd = packed_attention(q, k, v, RAGGED, 0.3, window).split(RAGGED, 1)
    start = 0
    for length, want in zip(RAGGED, crowd, strict=True):
        own = slice(start, start + length)
        alone = packed_attention(q[:, :, own], k[:, :, own], v[:, :, own], (length,), 0.3, window)
        assert torch.equal(alone, want)
        start += length


def test_lengths_that_do_not_add_up_are_refused() -> None:
    q, k, v = stream((4, 4), torch.float32)
    with pytest.raises(RuntimeError):
        packed_attention(q, k, v, (4, 3), 0.3)


def test_forward_counts_the_window_as_a_half_open_distance() -> None:
    lengths = (20, 3)
    q, k, v = stream(lengths, torch.float32)
    module = torch.nn.Identity()
    got, weights = packed_attention_forward(
        module, q, k, v, None, sliding_window=5, packed_lengths=PackedLengths(lengths), dropout=0.0, is_causal=False
    )
    assert weights is None
    assert deviation(got, masked_softmax(q, k, v, lengths, 8**-0.5, 4)) < TOLERANCE[torch.float32]


def test_forward_without_lengths_is_an_error() -> None:
    q, k, v = stream((4,), torch.float32)
    with pytest.raises(RuntimeError, match="packed_lengths"):
        packed_attention_forward(torch.nn.Identity(), q, k, v, None)


def test_register_is_idempotent_and_makes_no_mask() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    assert register() == register()
    assert AttentionInterface()[register()] is packed_attention_forward
    mask = AttentionMaskInterface()[register()]
    assert mask(SimpleNamespace(), q_length=4, kv_length=4) is None


@pytest.mark.parametrize("window", [None, 8])
def test_the_kernel_of_gpus_gives_the_same(window: int | None) -> None:
    """In triton's interpreter, as it is called on a GPU."""
    q, k, v = stream(RAGGED, torch.float32)
    got = kernel_attention(q, k, v, RAGGED, 0.3, window)
    assert deviation(got, masked_softmax(q, k, v, RAGGED, 0.3, window)) < TOLERANCE[torch.float32]
