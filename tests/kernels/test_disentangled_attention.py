"""The kernel against its definition, and both against transformers' DeBERTa-v2 run on one sequence at a time."""

from itertools import accumulate

import pytest
import torch
from torch import Tensor
from torch.nn import Linear
from transformers import DebertaV2Config
from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention, make_log_bucket_position

from padserve_kernels.disentangled_attention import disentangled_attention
from padserve_kernels.disentangled_attention.reference import disentangled_attention_reference, log_bucket
from padserve_kernels.disentangled_attention.triton import bucket_by_distance, disentangled_attention_triton

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
RAGGED = [1, 5, 33, 64, 2, 71]
BUCKETS, FARTHEST, SPAN = 8, 40, 8


def make(
    lengths: list[int], num_heads: int, dim: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Query, key, value, pos_key, pos_query, cu_seqlens."""
    generator = torch.Generator().manual_seed(sum(lengths) + dim)
    stream, table = (sum(lengths), num_heads, dim), (2 * SPAN, num_heads, dim)
    shapes = [stream, stream, stream, table, table]
    query, key, value, pos_key, pos_query = (
        torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes
    )
    cu_seqlens = torch.tensor([0, *accumulate(lengths)], device=device, dtype=torch.int32)
    return query, key, value, pos_key, pos_query, cu_seqlens


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got.float(), want.float(), atol=TOLERANCE[got.dtype], rtol=TOLERANCE[got.dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("terms", ["c2p", "p2c", "c2p p2c"])
def test_kernel_equals_its_definition(dtype: torch.dtype, terms: str, device: torch.device) -> None:
    query, key, value, pos_key, pos_query, cu_seqlens = make(RAGGED, 2, 32, dtype, device)
    given = (pos_key if "c2p" in terms else None, pos_query if "p2c" in terms else None)
    arguments = (query, key, value, *given, cu_seqlens, BUCKETS, FARTHEST, SPAN, 0.1)
    close(disentangled_attention_triton(*arguments), disentangled_attention_reference(*arguments))


@pytest.mark.parametrize("dim", [24, 64, 96, 128, 160])
def test_head_sizes(dim: int, device: torch.device) -> None:
    arguments = (*make([3, 33, 1], 2, dim, torch.float32, device), BUCKETS, FARTHEST, SPAN, dim**-0.5)
    close(disentangled_attention_triton(*arguments), disentangled_attention_reference(*arguments))


@pytest.mark.parametrize("terms", [[], ["c2p"], ["p2c"], ["c2p", "p2c"]], ids=str)
@pytest.mark.parametrize("buckets", [-1, 8], ids=["plain", "buckets"])
def test_equals_transformers_one_sequence_at_a_time(terms: list[str], buckets: int, device: torch.device) -> None:
    """Lengths reach beyond the linear range, the last bucket and the position table."""
    config = DebertaV2Config(
        hidden_size=32,
        num_attention_heads=2,
        relative_attention=True,
        position_buckets=buckets,
        max_relative_positions=24,
        pos_att_type=terms,
    )
    torch.manual_seed(1)
    module = DisentangledSelfAttention(config).eval()
    lengths = [1, 4, 5, 23, 70]
    hidden = torch.randn(sum(lengths), 32) * 2
    embeddings = torch.randn(2 * module.pos_ebd_size, 32)
    mask = torch.ones(1, 1, 1, 1)
    with torch.inference_mode():
        want = [module(part[None], mask, rel_embeddings=embeddings)[0][0] for part in hidden.split(lengths)]
        stream = [heads(linear, hidden, device) for linear in (module.query_proj, module.key_proj, module.value_proj)]
        rows = [None if linear is None else heads(linear, embeddings, device) for linear in position_layers(module)]
        cu_seqlens = torch.tensor([0, *accumulate(lengths)], device=device, dtype=torch.int32)
        sizes = (module.position_buckets, module.max_relative_positions, module.pos_ebd_size)
        got = disentangled_attention(*stream, *rows, cu_seqlens, *sizes)
    close(got.cpu().flatten(1), torch.cat(want))


def heads(linear: Linear, rows: Tensor, device: torch.device) -> Tensor:
    """``[rows, 2 heads, 16]``."""
    return linear(rows).unflatten(-1, (2, 16)).to(device)


def position_layers(module: DisentangledSelfAttention) -> tuple[Linear | None, Linear | None]:
    """What projects the position embeddings to ``pos_key`` and to ``pos_query``."""
    pos_key = module.pos_key_proj if "c2p" in module.pos_att_type else None
    return pos_key, module.pos_query_proj if "p2c" in module.pos_att_type else None


@pytest.mark.parametrize(("buckets", "farthest"), [(256, 512), (8, 40), (32, 128), (2, 16), (48, 1000), (255, 511)])
def test_buckets_equal_transformers_at_every_distance(buckets: int, farthest: int) -> None:
    distance = torch.arange(-2100, 2101)
    want = make_log_bucket_position(distance, buckets, farthest).long()
    assert torch.equal(log_bucket(distance, buckets, farthest), want)
    table = bucket_by_distance(2101, buckets, farthest, torch.device("cpu"))
    assert torch.equal(table[distance.abs()] * distance.sign(), want)


def test_packed_equals_each_sequence_alone(device: torch.device) -> None:
    query, key, value, pos_key, pos_query, cu_seqlens = make([1, 37, 2, 65], 2, 32, torch.float32, device)
    sizes = (BUCKETS, FARTHEST, SPAN)
    packed = disentangled_attention(query, key, value, pos_key, pos_query, cu_seqlens, *sizes)
    for start, stop in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        q, k, v = (tensor[start:stop].clone() for tensor in (query, key, value))
        alone = torch.tensor([0, stop - start], device=device, dtype=torch.int32)
        assert torch.equal(disentangled_attention(q, k, v, pos_key, pos_query, alone, *sizes), packed[start:stop])


def test_garbage_of_a_neighbour_does_not_leak(device: torch.device) -> None:
    """NaN in one sequence leaves the others as they were."""
    query, key, value, *rest = make([7, 20, 3], 2, 32, torch.float32, device)
    want = disentangled_attention(query, key, value, *rest, BUCKETS, FARTHEST, SPAN)
    for tensor in (query, key, value):
        tensor[7:27] = float("nan")
    got = disentangled_attention(query, key, value, *rest, BUCKETS, FARTHEST, SPAN)
    assert torch.equal(got[:7], want[:7])
    assert torch.equal(got[27:], want[27:])


def test_position_rows_that_no_pair_needs_are_not_seen(device: torch.device) -> None:
    """The longest distance is 2, so the rows of others may hold anything."""
    query, key, value, pos_key, pos_query, cu_seqlens = make([3, 1], 2, 32, torch.float32, device)
    want = disentangled_attention(query, key, value, pos_key, pos_query, cu_seqlens, BUCKETS, FARTHEST, SPAN)
    for rows in (pos_key, pos_query):
        rows[: SPAN - 2] = float("nan")
        rows[SPAN + 3 :] = float("nan")
    got = disentangled_attention(query, key, value, pos_key, pos_query, cu_seqlens, BUCKETS, FARTHEST, SPAN)
    assert torch.equal(got, want)


def test_views_of_larger_buffers_full_of_nan(device: torch.device) -> None:
    """Strided views: what lies between and beyond their rows is never read, and rows that no sequence owns are zero."""
    *tensors, cu_seqlens = make([30, 11], 2, 24, torch.float32, device)
    want = disentangled_attention(*tensors, cu_seqlens, BUCKETS, FARTHEST, SPAN)

    def inside(tensor: Tensor, spare: int) -> Tensor:
        rows, num_heads, dim = tensor.shape
        buffer = torch.full((rows + 2 * spare, num_heads + 2, dim + 8), float("nan"), device=device)
        buffer[spare : rows + spare, 1:-1, :dim] = tensor
        return buffer[spare : rows + 2 * spare, 1:-1, :dim]

    stream = [inside(tensor, 9) for tensor in tensors[:3]]
    table = [inside(tensor, 9)[: 2 * SPAN] for tensor in tensors[3:]]
    got = disentangled_attention(*stream, *table, cu_seqlens, BUCKETS, FARTHEST, SPAN)
    close(got[:41], want)
    assert (got[41:] == 0).all()


@pytest.mark.parametrize(
    "lengths", [[], [0], [0, 4, 0], [1], [2] * 100], ids=["none", "empty", "empties", "one", "many"]
)
def test_odd_numbers_of_sequences(lengths: list[int], device: torch.device) -> None:
    arguments = make(lengths, 1, 16, torch.float32, device)
    got = disentangled_attention(*arguments, BUCKETS, FARTHEST, SPAN, 0.25)
    assert got.shape == arguments[0].shape
    close(got, disentangled_attention_reference(*arguments, BUCKETS, FARTHEST, SPAN, 0.25))


def test_what_does_not_fit_is_refused(device: torch.device) -> None:
    query, key, value, pos_key, pos_query, cu_seqlens = make([4], 2, 16, torch.float32, device)
    sizes = (BUCKETS, FARTHEST, SPAN)
    with pytest.raises(ValueError, match=r"\[tokens, heads, dim\]"):
        disentangled_attention(query[0], key, value, pos_key, pos_query, cu_seqlens, *sizes)
    with pytest.raises(ValueError, match=r"\[tokens, heads, dim\]"):
        disentangled_attention(query, key, value[:3], pos_key, pos_query, cu_seqlens, *sizes)
    with pytest.raises(ValueError, match="pos_key must be"):
        disentangled_attention(query, key, value, pos_key[1:], pos_query, cu_seqlens, *sizes)
    with pytest.raises(ValueError, match="pos_query must be"):
        disentangled_attention(query, key, value, pos_key, pos_query[:, :1], cu_seqlens, *sizes)
    with pytest.raises(ValueError, match="pos_key must be"):
        disentangled_attention(query, key, value, pos_key, pos_query, cu_seqlens, BUCKETS, FARTHEST, SPAN + 1)
    with pytest.raises(ValueError, match="cu_seqlens"):
        disentangled_attention(query, key, value, pos_key, pos_query, cu_seqlens[None], *sizes)
    with pytest.raises(ValueError, match="one dtype"):
        disentangled_attention(query, key, value, pos_key.half(), pos_query, cu_seqlens, *sizes)
    with pytest.raises(ValueError, match="contiguous"):
        disentangled_attention(query.mT.contiguous().mT, key, value, pos_key, pos_query, cu_seqlens, *sizes)
    with pytest.raises(ValueError, match="position_buckets"):
        disentangled_attention(query, key, value, pos_key, pos_query, cu_seqlens, 1, FARTHEST, SPAN)
    with pytest.raises(ValueError, match="max_relative_positions"):
        disentangled_attention(query, key, value, pos_key, pos_query, cu_seqlens, BUCKETS, 5, SPAN)
