"""The kernel against its definition, and the definition against transformers' T5 and MPNet, a sequence at a time."""

from itertools import accumulate

import pytest
import torch
from torch import Tensor
from transformers import MPNetConfig, T5Config
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder
from transformers.models.t5.modeling_t5 import T5Attention

from padserve_kernels.relative_bias_attention import relative_bias_attention
from padserve_kernels.relative_bias_attention.reference import relative_bias_attention_reference, relative_bucket
from padserve_kernels.relative_bias_attention.triton import bucket_by_distance, relative_bias_attention_triton

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
RAGGED = [1, 5, 33, 64, 2, 71]
DIRECTIONS = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
BUCKETS = pytest.mark.parametrize(
    ("buckets", "farthest"), [(32, 128), (8, 20), (33, 100), (64, 1000), (4, 9), (320, 800)]
)


def make(
    lengths: list[int], num_heads: int, dim: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Query, key, value, cu_seqlens, bias_table."""
    generator = torch.Generator().manual_seed(sum(lengths) + dim)
    stream = (sum(lengths), num_heads, dim)
    shapes = [stream, stream, stream, (32, num_heads)]
    query, key, value, table = (torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)
    return query, key, value, torch.tensor([0, *accumulate(lengths)], device=device, dtype=torch.int32), table


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got.float(), want.float(), atol=TOLERANCE[got.dtype], rtol=TOLERANCE[got.dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@DIRECTIONS
def test_kernel_equals_its_definition(dtype: torch.dtype, causal: bool, device: torch.device) -> None:
    arguments = (*make(RAGGED, 2, 32, dtype, device), 0.2, causal, 100)
    close(relative_bias_attention_triton(*arguments), relative_bias_attention_reference(*arguments))


@pytest.mark.parametrize("dim", [24, 64, 96, 128, 256])
def test_head_sizes(dim: int, device: torch.device) -> None:
    arguments = make([3, 33, 1], 2, dim, torch.float32, device)
    close(relative_bias_attention(*arguments), relative_bias_attention_reference(*arguments, dim**-0.5))


@BUCKETS
@DIRECTIONS
def test_buckets_equal_transformers_at_every_distance(buckets: int, farthest: int, causal: bool) -> None:
    relative = torch.arange(-2100, 1 if causal else 2101)
    want = T5Attention._relative_position_bucket(relative, not causal, buckets, farthest)
    assert torch.equal(relative_bucket(relative, buckets, causal, farthest), want)
    half = 0 if causal else buckets // 2
    table = bucket_by_distance(half or buckets, farthest, torch.device("cpu"))
    assert torch.equal(table[relative.abs().clamp(max=farthest)] + (relative > 0) * half, want)
    if not causal:
        assert torch.equal(MPNetEncoder.relative_position_bucket(relative, buckets, farthest), want)


@DIRECTIONS
def test_equals_t5_one_sequence_at_a_time(causal: bool, device: torch.device) -> None:
    config = T5Config(
        d_model=32,
        d_kv=16,
        num_heads=2,
        relative_attention_num_buckets=16,
        relative_attention_max_distance=50,
        is_decoder=causal,
    )
    torch.manual_seed(1)
    module = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    torch.nn.init.normal_(module.relative_attention_bias.weight)
    module.o = torch.nn.Identity()
    lengths = [1, 5, 70, 2]
    hidden = torch.randn(sum(lengths), 32)
    want = []
    with torch.inference_mode():
        for part in hidden.split(lengths):
            mask = torch.full((1, 1, len(part), len(part)), float("-inf")).triu(1) if causal else None
            want.append(module(part[None], mask=mask)[0][0])
        query, key, value = (proj(hidden).unflatten(-1, (2, 16)).to(device) for proj in (module.q, module.k, module.v))
        cu_seqlens = torch.tensor([0, *accumulate(lengths)], device=device, dtype=torch.int32)
        table = module.relative_attention_bias.weight.to(device)
        got = relative_bias_attention(query, key, value, cu_seqlens, table, 1.0, causal, 50)
    close(got.cpu().flatten(1), torch.cat(want))


def test_equals_mpnet_one_sequence_at_a_time(device: torch.device) -> None:
    config = MPNetConfig(hidden_size=32, num_attention_heads=2, num_hidden_layers=1, intermediate_size=32)
    torch.manual_seed(1)
    encoder = MPNetEncoder(config).eval()
    torch.nn.init.normal_(encoder.relative_attention_bias.weight)
    attention = encoder.layer[0].attention.attn
    attention.o = torch.nn.Identity()
    lengths = [1, 3, 150]
    hidden = torch.randn(sum(lengths), 32)
    want = []
    with torch.inference_mode():
        for part in hidden.split(lengths):
            bias = encoder.compute_position_bias(part[None])
            want.append(attention(part[None], position_bias=bias)[0][0])
        query, key, value = (
            proj(hidden).unflatten(-1, (2, 16)).to(device) for proj in (attention.q, attention.k, attention.v)
        )
        cu_seqlens = torch.tensor([0, *accumulate(lengths)], device=device, dtype=torch.int32)
        got = relative_bias_attention(query, key, value, cu_seqlens, encoder.relative_attention_bias.weight.to(device))
    close(got.cpu().flatten(1), torch.cat(want))


@DIRECTIONS
def test_packed_equals_each_sequence_alone(causal: bool, device: torch.device) -> None:
    query, key, value, cu_seqlens, table = make([1, 37, 2, 65], 2, 32, torch.float32, device)
    packed = relative_bias_attention(query, key, value, cu_seqlens, table, causal=causal)
    for start, stop in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        q, k, v = (tensor[start:stop].clone() for tensor in (query, key, value))
        alone = torch.tensor([0, stop - start], device=device, dtype=torch.int32)
        assert torch.equal(relative_bias_attention(q, k, v, alone, table, causal=causal), packed[start:stop])


def test_garbage_of_a_neighbour_does_not_leak(device: torch.device) -> None:
    """NaN in one sequence leaves the others as they were."""
    query, key, value, cu_seqlens, table = make([7, 20, 3], 2, 32, torch.float32, device)
    want = relative_bias_attention(query, key, value, cu_seqlens, table)
    for tensor in (query, key, value):
        tensor[7:27] = float("nan")
    got = relative_bias_attention(query, key, value, cu_seqlens, table)
    assert torch.equal(got[:7], want[:7])
    assert torch.equal(got[27:], want[27:])


@DIRECTIONS
def test_buckets_that_no_pair_needs_are_not_seen(causal: bool, device: torch.device) -> None:
    """The longest distance is 2, so the biases of others may be anything."""
    query, key, value, cu_seqlens, table = make([3, 1], 2, 32, torch.float32, device)
    want = relative_bias_attention(query, key, value, cu_seqlens, table, causal=causal)
    table[3:16] = float("nan")
    table[19:] = float("inf")
    assert torch.equal(relative_bias_attention(query, key, value, cu_seqlens, table, causal=causal), want)


def test_views_of_larger_buffers_full_of_nan(device: torch.device) -> None:
    """Strided views: what lies between and beyond their rows is never read, and rows that no sequence owns are zero."""
    query, key, value, cu_seqlens, table = make([30, 11], 2, 24, torch.float32, device)
    want = relative_bias_attention(query, key, value, cu_seqlens, table)
    stream = []
    for tensor in (query, key, value):
        buffer = torch.full((59, 4, 32), float("nan"), device=device)
        buffer[9:50, 1:3, :24] = tensor
        stream.append(buffer[9:, 1:3, :24])
    wide = torch.full((40, 9), float("nan"), device=device)
    wide[4:36, 1:8:4] = table
    got = relative_bias_attention(*stream, cu_seqlens, wide[4:36, 1:8:4])
    close(got[:41], want)
    assert (got[41:] == 0).all()


@pytest.mark.parametrize(
    "lengths", [[], [0], [0, 4, 0], [1], [2] * 100], ids=["none", "empty", "empties", "one", "many"]
)
@DIRECTIONS
def test_odd_numbers_of_sequences(lengths: list[int], causal: bool, device: torch.device) -> None:
    arguments = (*make(lengths, 1, 16, torch.float32, device), 0.25, causal)
    got = relative_bias_attention(*arguments)
    assert got.shape == arguments[0].shape
    close(got, relative_bias_attention_reference(*arguments))


def test_what_does_not_fit_is_refused(device: torch.device) -> None:
    query, key, value, cu_seqlens, table = make([4], 2, 16, torch.float32, device)
    with pytest.raises(ValueError, match=r"\[tokens, heads, dim\]"):
        relative_bias_attention(query[0], key, value, cu_seqlens, table)
    with pytest.raises(ValueError, match=r"\[tokens, heads, dim\]"):
        relative_bias_attention(query, key[:, :1], value, cu_seqlens, table)
    with pytest.raises(ValueError, match="cu_seqlens"):
        relative_bias_attention(query, key, value, cu_seqlens[:0], table)
    with pytest.raises(ValueError, match="one dtype"):
        relative_bias_attention(query, key, value.half(), cu_seqlens, table)
    with pytest.raises(ValueError, match="contiguous"):
        relative_bias_attention(query.mT.contiguous().mT, key, value, cu_seqlens, table)
    with pytest.raises(ValueError, match="bias_table"):
        relative_bias_attention(query, key, value, cu_seqlens, table.T)
    with pytest.raises(ValueError, match="num_buckets"):
        relative_bias_attention(query, key, value, cu_seqlens, table[:3])
    with pytest.raises(ValueError, match="max_distance"):
        relative_bias_attention(query, key, value, cu_seqlens, table, max_distance=8)
