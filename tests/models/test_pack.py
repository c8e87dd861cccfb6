"""Packing encodings, taking some of a batch out, and positions that skip padding tokens."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from padserve.core import Batch, Encoding
from padserve.models.pack import pack
from padserve.models.runners import PaddedRunner, offset_positions, padded_index, select_sequences

SEQUENCES = st.lists(
    st.lists(st.integers(0, 9), min_size=1, max_size=12).flatmap(
        lambda ids: st.builds(
            Encoding,
            st.just(np.array(ids, dtype=np.int64)),
            st.one_of(st.none(), st.just(np.ones(len(ids), dtype=np.int64))),
            gather=st.lists(st.integers(0, len(ids) - 1), max_size=3).map(tuple),
            pooling=st.sampled_from([None, "cls"]),
            prompt_tokens=st.integers(0, 3),
        )
    ),
    min_size=1,
    max_size=8,
)


def same(a: Batch, b: Batch) -> bool:
    fields = ("input_ids", "position_ids", "cu_seqlens", "gather", "gather_cu_seqlens")
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in fields) and (
        a.max_seqlen,
        a.poolings,
        a.prompt_tokens,
    ) == (b.max_seqlen, b.poolings, b.prompt_tokens)


@given(SEQUENCES)
def test_every_sequence_can_be_read_back(encodings: list[Encoding]) -> None:
    batch = pack(encodings)
    assert (batch.num_seqs, batch.total_tokens) == (len(encodings), sum(map(len, encodings)))
    assert batch.max_seqlen == max(map(len, encodings))
    typed = any(encoding.token_type_ids is not None for encoding in encodings)
    assert (batch.token_type_ids is not None) == typed
    for index, encoding in enumerate(encodings):
        span = slice(batch.cu_seqlens[index], batch.cu_seqlens[index + 1])
        assert batch.input_ids[span].tolist() == encoding.input_ids.tolist()
        assert batch.position_ids[span].tolist() == list(range(len(encoding)))
        gathered = batch.gather[batch.gather_cu_seqlens[index] : batch.gather_cu_seqlens[index + 1]]
        assert tuple(gathered - batch.cu_seqlens[index]) == encoding.gather
        if batch.token_type_ids is not None:
            kind = 0 if encoding.token_type_ids is None else 1
            assert set(batch.token_type_ids[span]) == {kind}


@given(SEQUENCES, st.data())
def test_selecting_equals_packing_the_selected(encodings: list[Encoding], data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.sampled_from(range(len(encodings))), min_size=1, unique=True))
    if any(encoding.token_type_ids is not None for encoding in encodings):
        zeros = [np.zeros(len(encoding), dtype=np.int64) for encoding in encodings]
        encodings = [
            encoding if encoding.token_type_ids is not None else replace(encoding, token_type_ids=zero)
            for encoding, zero in zip(encodings, zeros, strict=True)
        ]
    selected = select_sequences(pack(encodings), np.array(indices))
    wanted = pack([encodings[index] for index in indices])
    assert same(selected, wanted)
    assert (selected.token_type_ids is None) == (wanted.token_type_ids is None)
    if wanted.token_type_ids is not None and selected.token_type_ids is not None:
        assert selected.token_type_ids.tolist() == wanted.token_type_ids.tolist()


@pytest.mark.parametrize("lengths", [[], [0], [3, 0, 2]])
def test_no_sequence_may_be_empty(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        pack([Encoding(np.ones(length, dtype=np.int64)) for length in lengths])


@given(SEQUENCES)
def test_positions_are_those_of_the_stock_rule_for_each_sequence(encodings: list[Encoding]) -> None:
    """transformers' RoBERTa: cumulative sum over tokens that are not padding, padding itself at padding_idx."""
    padding = 1
    positions = offset_positions(pack(encodings), padding + 1)
    want = []
    for encoding in encodings:
        counted = torch.tensor(encoding.input_ids).ne(padding).int()
        want += (torch.cumsum(counted, 0) * counted + padding).tolist()
    assert positions.tolist() == want


@given(SEQUENCES)
def test_without_offset_every_token_counts(encodings: list[Encoding]) -> None:
    batch = pack(encodings)
    assert offset_positions(batch, 0).tolist() == batch.position_ids.tolist()


@given(SEQUENCES)
def test_the_padded_view_has_every_token_in_its_place_and_zeroed_padding(encodings: list[Encoding]) -> None:
    batch = pack(encodings)
    padded = PaddedRunner(lambda padded, batch: [], 77, torch.device("cpu"))._pad(batch)
    rows, columns = padded_index(batch)
    assert len(rows) == len(columns) == batch.total_tokens
    assert ("token_type_ids" in padded) == (batch.token_type_ids is not None)
    for index, encoding in enumerate(encodings):
        length, pad = len(encoding), batch.max_seqlen - len(encoding)
        assert padded["input_ids"][index].tolist() == encoding.input_ids.tolist() + [77] * pad
        assert padded["attention_mask"][index].tolist() == [1] * length + [0] * pad
        if "token_type_ids" in padded:
            assert padded["token_type_ids"][index, length:].tolist() == [0] * pad
