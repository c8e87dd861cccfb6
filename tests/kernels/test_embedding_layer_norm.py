"""The kernel against its definition, and the definition against torch's own embedding and layer norm."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from padserve_kernels.embedding_layer_norm import embedding_layer_norm
from padserve_kernels.embedding_layer_norm.reference import embedding_layer_norm_reference
from padserve_kernels.embedding_layer_norm.triton import embedding_layer_norm_triton

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
ENTRIES = (50, 20, 2)
Three = tuple[Tensor, Tensor, Tensor]


def make_ids(count: int, device: torch.device, dtype: torch.dtype = torch.int64) -> Three:
    """Ids of ``count`` tokens; the first and the last entry of each table are among them."""
    generator = torch.Generator().manual_seed(count)
    words, positions, token_types = (
        torch.randint(entries, (count,), generator=generator).to(device, dtype) for entries in ENTRIES
    )
    for ids, entries in zip((words, positions, token_types), ENTRIES, strict=True):
        ids[:1], ids[1:2] = 0, entries - 1
    return words, positions, token_types


def make_tables(dim: int, dtype: torch.dtype, device: torch.device) -> tuple[Three, Tensor, Tensor]:
    """Tables, weight and bias, each within memory that is NaN."""
    generator = torch.Generator().manual_seed(dim)
    shapes = [(entries, dim) for entries in ENTRIES]
    words, positions, token_types, weight, bias = (
        poisoned(torch.randn(shape, generator=generator).to(device, dtype)) for shape in (*shapes, (dim,), (dim,))
    )
    return (words, positions, token_types), weight, bias


def poisoned(tensor: Tensor) -> Tensor:
    """The same numbers as a view that NaN surrounds on every side."""
    wide = tensor.new_full([size + 6 for size in tensor.shape], float("nan"))
    view = wide[tuple(slice(3, size + 3) for size in tensor.shape)]
    return view.copy_(tensor)


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got.float(), want.float(), atol=TOLERANCE[got.dtype], rtol=TOLERANCE[got.dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(("count", "dim"), [(1, 1), (3, 2), (33, 37), (17, 64), (5, 385), (4, 1500)])
def test_kernel_equals_its_definition(dtype: torch.dtype, count: int, dim: int, device: torch.device) -> None:
    arguments = (make_ids(count, device), *make_tables(dim, dtype, device), 1e-5)
    got = embedding_layer_norm_triton(*arguments)
    assert got.dtype == dtype
    close(got, embedding_layer_norm_reference(*arguments))


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_definition_equals_torch(dtype: torch.dtype, device: torch.device) -> None:
    ids = make_ids(40, device)
    tables, weight, bias = make_tables(37, dtype, device)
    gathered = [F.embedding(rows, table).float() for rows, table in zip(ids, tables, strict=True)]
    want = F.layer_norm(torch.stack(gathered).sum(0), (37,), weight.float(), bias.float(), 1e-5)
    close(embedding_layer_norm_reference(ids, tables, weight, bias, 1e-5), want)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_ids_of_any_int_and_stride(dtype: torch.dtype, device: torch.device) -> None:
    ids = make_ids(21, device, dtype)
    tables, weight, bias = make_tables(37, torch.float32, device)
    strided = [torch.stack([rows, torch.full_like(rows, 10**6)], 1)[:, 0] for rows in ids]
    close(
        embedding_layer_norm(*strided, *tables, weight, bias),
        embedding_layer_norm_reference(ids, tables, weight, bias, 1e-12),
    )


def test_garbage_in_rows_that_no_id_names_is_never_read(device: torch.device) -> None:
    ids = make_ids(9, device)
    tables, weight, bias = make_tables(37, torch.float32, device)
    want = embedding_layer_norm(*ids, *tables, weight, bias)
    for rows, table in zip(ids, tables, strict=True):
        unnamed = torch.ones(len(table), dtype=torch.bool, device=device)
        unnamed[rows] = False
        table[unnamed] = float("nan")
    assert torch.equal(embedding_layer_norm(*ids, *tables, weight, bias), want)


def test_no_tokens(device: torch.device) -> None:
    tables, weight, bias = make_tables(37, torch.float32, device)
    assert embedding_layer_norm(*make_ids(0, device), *tables, weight, bias).shape == (0, 37)


@pytest.mark.parametrize("bad", [-1, 50, 2**40])
def test_an_id_outside_its_table_is_not_followed(bad: int, device: torch.device) -> None:
    ids = make_ids(4, device)
    ids[0][2] = bad
    tables, weight, bias = make_tables(37, torch.float32, device)
    got = embedding_layer_norm_triton(ids, tables, weight, bias, 1e-12)
    assert got.isnan().all(1).tolist() == [False, False, True, False]
    if device.type == "cpu":
        with pytest.raises(IndexError, match="table of 50"):
            embedding_layer_norm(*ids, *tables, weight, bias)


def test_shapes_that_do_not_fit_are_refused(device: torch.device) -> None:
    words, positions, token_types = make_ids(4, device)
    tables, weight, bias = make_tables(8, torch.float32, device)
    with pytest.raises(ValueError, match="ids must be"):
        embedding_layer_norm(words, positions[:3], token_types, *tables, weight, bias)
    with pytest.raises(ValueError, match="ids must be"):
        embedding_layer_norm(words.float(), positions, token_types, *tables, weight, bias)
    with pytest.raises(ValueError, match="tables must be"):
        embedding_layer_norm(words, positions, token_types, tables[0][:, :7], *tables[1:], weight, bias)
    with pytest.raises(ValueError, match=r"must be \[8\]"):
        embedding_layer_norm(words, positions, token_types, *tables, weight[:7], bias)
    halves = [table[:, ::2] for table in tables]
    with pytest.raises(ValueError, match="contiguous"):
        embedding_layer_norm(words, positions, token_types, *halves, weight[:4], bias[:4])
