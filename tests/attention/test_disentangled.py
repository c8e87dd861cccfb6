"""Disentangled and biased attention against the modules of transformers, one sequence at a time."""

import pytest
import torch
from transformers import DebertaV2Config, MPNetConfig, MPNetModel
from transformers.models.deberta_v2.modeling_deberta_v2 import (
    DisentangledSelfAttention,
    build_relative_position,
    make_log_bucket_position,
)

from padserve.attention.biased import BiasedAttention
from padserve.attention.disentangled import log_bucket, position_rows
from padserve.models.families.deberta_v2 import disentangled

HEADS, DIM = 4, 8
LENGTHS = (1, 2, 8, 16, 17, 33, 70)


@pytest.mark.parametrize(("buckets", "max_distance"), [(256, 512), (16, 64), (32, 512), (8, 24)])
def test_log_buckets_are_those_of_transformers(buckets: int, max_distance: int) -> None:
    distance = torch.arange(-1500, 1501)
    want = make_log_bucket_position(distance, buckets, max_distance).long()
    assert torch.equal(log_bucket(distance, buckets, max_distance), want)


@pytest.mark.parametrize("length", [1, 2, 128, 256, 512, 513])
def test_rows_of_the_position_table(length: int) -> None:
    states = torch.empty(1, length, 4)
    relative = build_relative_position(states, states, bucket_size=256, max_position=512)[0]  # [query, key]
    rows = position_rows(length, 256, 256, 512)
    distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    assert torch.equal(rows[distance + length - 1], (relative + 256).clamp(0, 511))


@pytest.mark.parametrize("terms", [["c2p", "p2c"], ["c2p"], ["p2c"]], ids="+".join)
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])
@pytest.mark.parametrize("buckets", [16, -1], ids=["log", "linear"])
def test_a_packed_stream_equals_the_stock_module_on_each_sequence(terms: list[str], shared: bool, buckets: int) -> None:
    torch.manual_seed(3)
    config = DebertaV2Config(
        hidden_size=HEADS * DIM,
        num_attention_heads=HEADS,
        relative_attention=True,
        pos_att_type=terms,
        share_att_key=shared,
        position_buckets=buckets,
        max_position_embeddings=48,
    )
    stock = DisentangledSelfAttention(config).eval()
    table = torch.randn(2 * stock.pos_ebd_size, HEADS * DIM)
    hidden = torch.randn(sum(LENGTHS), HEADS * DIM)
    with torch.inference_mode():
        query, key, value = (
            projection(hidden).view(1, -1, HEADS, DIM).transpose(1, 2)
            for projection in (stock.query_proj, stock.key_proj, stock.value_proj)
        )
        attend = disentangled(stock, table)
        got = attend(query, key, value, LENGTHS)[0].flatten(1)
        by_kernel = attend.by_kernel(query, key, value, LENGTHS)[0].flatten(1)
        torch.testing.assert_close(by_kernel, got, rtol=0, atol=1e-5)
        for part, want_of in zip(got.split(list(LENGTHS)), hidden.split(list(LENGTHS)), strict=True):
            mask = torch.ones(1, 1, len(want_of), len(want_of))
            want, _ = stock(want_of[None], mask, rel_embeddings=table)
            torch.testing.assert_close(part, want[0], atol=2e-5, rtol=2e-5)


def test_bias_by_distance_equals_the_stock_encoder() -> None:
    torch.manual_seed(4)
    config = MPNetConfig(
        hidden_size=HEADS * DIM, num_attention_heads=HEADS, num_hidden_layers=1, intermediate_size=16, vocab_size=50
    )
    model = MPNetModel(config).eval()
    lengths = (3, 300, 1, 40)
    query, key, value = torch.randn(3, 1, HEADS, sum(lengths), DIM)
    scale = DIM**-0.5
    with torch.inference_mode():
        attend = BiasedAttention(lambda n: model.encoder.compute_position_bias(torch.empty(1, n, 1))[0], scale)
        got = attend(query, key, value, lengths)[0]
        start = 0
        for length in lengths:
            span = slice(start, start + length)
            bias = model.encoder.compute_position_bias(torch.empty(1, length, 1))
            scores = query[:, :, span] @ key[:, :, span].transpose(2, 3) * scale + bias
            want = (scores.softmax(-1) @ value[:, :, span])[0].transpose(0, 1)
            torch.testing.assert_close(got[span], want, atol=2e-5, rtol=2e-5)
            start += length


def test_garbage_of_a_neighbour_does_not_leak() -> None:
    torch.manual_seed(5)
    config = DebertaV2Config(
        hidden_size=HEADS * DIM, num_attention_heads=HEADS, relative_attention=True, pos_att_type=["c2p", "p2c"]
    )
    stock = DisentangledSelfAttention(config).eval()
    attend = disentangled(stock, torch.randn(2 * stock.pos_ebd_size, HEADS * DIM))
    with torch.inference_mode():
        query, key, value = torch.randn(3, 1, HEADS, 12, DIM)
        want = attend(query, key, value, (4, 5, 3))
        for tensor in (query, key, value):
            tensor[:, :, 4:9] = float("nan")
        got = attend(query, key, value, (4, 5, 3))
    torch.testing.assert_close(got[:, :4], want[:, :4])
    torch.testing.assert_close(got[:, 9:], want[:, 9:])
