"""Warpers beside transformers' own; draws: their distribution, and that they depend on seed, output and place only."""

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import logits_process as stock
from transformers.generation.utils import GenerationMixin

from padserve.errors import InvalidField
from padserve.generate.sample import Sampler, SamplingOptions, log_probs, min_p, top_k, top_p, typical_p, warp

NEVER = float("-inf")


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def kinds(seed: int) -> Iterator[Tensor]:
    """Rows of every kind: smooth, with ties, flat, peaked, with tokens ruled out, of odd sizes."""
    rng = random.Random(seed)
    for size in (1, 2, 7, 33, 300):
        row = torch.randn(size, generator=generator(seed * 31 + size)) * rng.choice([0.1, 2.0, 20.0])
        yield row
        yield (row * 2).round() / 2
        yield torch.zeros(size)
        yield row.index_fill(0, torch.arange(0, size - 1, 2), NEVER)
        yield (row.bfloat16() / 4).round().float().index_fill(0, torch.arange(0, size - 1, 3), NEVER)
        yield torch.full((size,), NEVER).index_fill(0, torch.tensor([size // 2]), 1.5)
    yield torch.randn(32_000, generator=generator(seed)).bfloat16().float()


def assert_as_stock(ours: Callable[[Tensor], Tensor], theirs: stock.LogitsProcessor) -> None:
    for seed in range(3):
        for row in kinds(seed):
            before = row.clone()
            expected = theirs(torch.tensor([[0]]), row[None].clone())[0]
            assert torch.equal(ours(row), expected)
            assert torch.equal(row, before)


@pytest.mark.parametrize("keep", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 10, 100_000])
def test_top_k(count: int, keep: int) -> None:
    assert_as_stock(lambda row: top_k(row, count, keep), stock.TopKLogitsWarper(count, min_tokens_to_keep=keep))


@pytest.mark.parametrize("keep", [1, 3, 900])
@pytest.mark.parametrize("mass", [0.0, 1e-6, 0.3, 0.5, 0.9, 0.999999, 1.0])
def test_top_p(mass: float, keep: int) -> None:
    assert_as_stock(lambda row: top_p(row, mass, keep), stock.TopPLogitsWarper(mass, min_tokens_to_keep=keep))


@pytest.mark.parametrize("keep", [1, 3])
@pytest.mark.parametrize("share", [0.0, 1e-4, 0.05, 0.5, 1.0])
def test_min_p(share: float, keep: int) -> None:
    assert_as_stock(lambda row: min_p(row, share, keep), stock.MinPLogitsWarper(share, min_tokens_to_keep=keep))


@pytest.mark.parametrize("keep", [1, 3])
@pytest.mark.parametrize("mass", [1e-6, 0.2, 0.9, 0.9999])
def test_typical_p(mass: float, keep: int) -> None:
    assert_as_stock(lambda row: typical_p(row, mass, keep), stock.TypicalLogitsWarper(mass, min_tokens_to_keep=keep))


@pytest.mark.parametrize("temperature", [1e-4, 0.7, 1.0, 1e4])
def test_temperature(temperature: float) -> None:
    options = SamplingOptions(temperature=temperature)
    assert_as_stock(lambda row: warp(row, options), stock.TemperatureLogitsWarper(temperature))


class Stock(GenerationMixin):
    """As much of a model as transformers needs to list its warpers."""

    config = SimpleNamespace(is_encoder_decoder=False)


CHOICES: dict[str, list[Any]] = {
    "temperature": [0.3, 1.0, 3.0],
    "top_k": [0, 1, 5, 50],
    "top_p": [0.05, 0.8, 1.0],
    "min_p": [0.0, 0.1],
    "typical_p": [0.3, 0.95, 1.0],
}


@pytest.mark.parametrize("num_beams", [1, 4])
def test_all_warpers_together_in_their_order(num_beams: int) -> None:
    for seed in range(100):
        rng = random.Random(seed)
        chosen = {name: rng.choice(values) for name, values in CHOICES.items()}
        config = GenerationConfig(do_sample=True, num_beams=num_beams, **chosen)
        config._eos_token_tensor = torch.tensor([2, 3])
        theirs = Stock()._get_logits_processor(config, input_ids_seq_length=1, device="cpu")
        options = SamplingOptions(do_sample=True, min_tokens_to_keep=1 if num_beams == 1 else 3, **chosen)
        row = torch.randn(97, generator=generator(seed)) * 3
        for scores in (row, row.round()):
            assert torch.equal(warp(scores, options), theirs(torch.tensor([[0]]), scores[None].clone())[0]), chosen


def test_neutral_warpers_return_what_they_are_given() -> None:
    row = torch.randn(9)
    assert warp(row, SamplingOptions(do_sample=True)) is row


@pytest.mark.parametrize("options", [SamplingOptions(), SamplingOptions(do_sample=True, temperature=0.0)])
def test_greedy_takes_the_first_of_the_highest(options: SamplingOptions) -> None:
    sampler = Sampler(options, seed=1)
    assert [sampler(torch.tensor([0.0, 2.0, 2.0])), sampler(torch.full((5,), NEVER))] == [1, 0]
    assert sampler.draws == 0


def test_rows_from_which_nothing_can_be_drawn() -> None:
    hot = Sampler(SamplingOptions(do_sample=True, top_p=0.5, typical_p=0.5), seed=1)
    assert hot(torch.full((5,), NEVER)) == 0
    cold = Sampler(SamplingOptions(do_sample=True, temperature=1e-38, top_p=0.5), seed=1)
    assert cold(torch.tensor([1.0, 900.0, 900.0, 2.0])) == 1
    assert cold(torch.tensor([-900.0, -30.0, -70.0])) == 1
    assert cold(torch.tensor([-1.0, 0.0, -1.0])) == 1
    assert hot.draws == 1


def test_a_tiny_top_p_and_a_top_k_of_one_are_greedy() -> None:
    for chosen in ({"top_p": 1e-9}, {"top_k": 1}, {"min_p": 1.0}, {"temperature": 1e-6}):
        sampler = Sampler(SamplingOptions(do_sample=True, **chosen), seed=3)
        for seed in range(20):
            row = torch.randn(50, generator=generator(seed))
            assert sampler(row) == int(row.argmax())


@pytest.mark.parametrize("drawn", [0.0, 1 - 2.0**-53])
def test_what_is_ruled_out_is_never_drawn(drawn: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sampler, "_uniform", lambda self: drawn)
    sampler = Sampler(SamplingOptions(do_sample=True), seed=0)
    for seed, size in itertools.product(range(40), (3, 40, 1000)):
        row = torch.randn(size, generator=generator(seed)) * 3
        row[0], row[-1] = NEVER, -500.0
        assert 0 < sampler(row) < size - 1


def assert_fits(counts: Counter[int], probabilities: Tensor) -> None:
    """Pearson's chi-square below its 99.9 % point (Wilson and Hilferty); nothing of probability 0."""
    expected = {token: counts.total() * likely for token, likely in enumerate(probabilities.tolist()) if likely > 0}
    assert set(counts) <= set(expected)
    statistic = sum((counts[token] - mean) ** 2 / mean for token, mean in expected.items())
    freedom = len(expected) - 1
    spread = 2 / (9 * freedom)
    assert statistic < freedom * (1 - spread + 3.09 * math.sqrt(spread)) ** 3


@pytest.mark.parametrize(
    "chosen",
    [{}, {"temperature": 0.5}, {"temperature": 2.0, "top_k": 6}, {"top_p": 0.8}, {"min_p": 0.1}, {"typical_p": 0.7}],
    ids=str,
)
def test_draws_have_the_distribution_of_the_scores(chosen: dict[str, Any]) -> None:
    options = SamplingOptions(do_sample=True, **chosen)
    row = torch.randn(12, generator=generator(5))
    likely = warp(row, options).softmax(-1).double()
    sampler = Sampler(options, seed=11)
    assert_fits(Counter(sampler(row) for _ in range(1600)), likely)


def test_neighbouring_seeds_outputs_and_draws_are_independent() -> None:
    options = SamplingOptions(do_sample=True)
    row = torch.tensor([0.3, 0.2, 0.1, 0.4]).log()
    pairs = torch.outer(row.exp(), row.exp()).flatten().double()
    for chosen in (
        [Sampler(options, seed=seed) for seed in range(1600)],
        [Sampler(options, seed=1, index=index) for index in range(1600)],
        [Sampler(options, seed=1)] * 1600,
    ):
        tokens = [sampler(row) for sampler in chosen]
        assert_fits(Counter(tokens), row.exp().double())
        assert_fits(Counter(4 * one + other for one, other in zip(tokens[::2], tokens[1::2], strict=True)), pairs)


def rows(count: int) -> list[Tensor]:
    return [torch.randn(64, generator=generator(place)) for place in range(count)]


def test_a_seed_gives_the_same_alone_and_among_others() -> None:
    options = SamplingOptions(do_sample=True, top_p=0.95)
    alone = [sampler(row) for sampler in [Sampler(options, seed=42)] for row in rows(30)]
    one, seeded, unseeded = Sampler(options, seed=42), Sampler(options, seed=43), Sampler(options)
    among = []
    for place, row in enumerate(rows(30)):
        torch.manual_seed(place)
        unseeded(row)
        among.append(one(row))
        for _ in range(place % 3):
            seeded(row)
    assert among == alone
    assert [seeded.fork(0)(row) for row in rows(30)] != alone


def test_outputs_of_a_request_differ_and_come_again() -> None:
    options = SamplingOptions(do_sample=True)
    first = Sampler(options, seed=7)
    forks = [first.fork(index) for index in range(5)]
    texts = [[sampler(row) for row in rows(20)] for sampler in forks]
    assert len({tuple(text) for text in texts}) == 5
    again = [Sampler(options, 7, index) for index in range(5)]
    assert texts == [[sampler(row) for row in rows(20)] for sampler in again]
    assert texts[0] == [first(row) for row in rows(20)]


def test_outputs_without_a_seed_differ_from_each_other_and_from_other_requests() -> None:
    options = SamplingOptions(do_sample=True)
    one, other = Sampler(options), Sampler(options)
    texts = {tuple(sampler(row) for row in rows(20)) for sampler in (one.fork(1), one.fork(2), other.fork(1), one)}
    assert len(texts) == 4


def test_refused_draws_are_drawn_again() -> None:
    options = SamplingOptions(do_sample=True)
    plain, drafting = Sampler(options, seed=9), Sampler(options, seed=9)
    expected = [plain(row) for row in rows(12)]
    found: list[int] = []
    while len(found) < 12:
        kept = drafting.draws
        drafts = [drafting(row) for row in rows(12)[kept : kept + 3]]
        accepted = 1 + len(found) % len(drafts)
        drafting.draws = kept + accepted
        found += drafts[:accepted]
    assert found == expected


def test_large_seeds_are_all_different() -> None:
    options = SamplingOptions(do_sample=True)
    seeds = [(0, 0), (1, 0), (0, 1), (2**32, 0), (2**32 + 1, 0), (1, 2**32), (2**63 - 1, 0), (2**64, 1)]
    assert len({tuple(map(Sampler(options, seed, index), rows(16))) for seed, index in seeds}) == len(seeds)


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"typical_p": 0.0},
        {"min_tokens_to_keep": 0},
    ],
    ids=str,
)
def test_options_that_make_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidField, match=next(iter(wrong))):
        SamplingOptions(**wrong)


def test_a_negative_seed() -> None:
    with pytest.raises(InvalidField, match="seed is -1"):
        Sampler(SamplingOptions(), seed=-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probs_are_those_of_the_raw_logits(dtype: torch.dtype) -> None:
    for seed in range(20):
        logits = (torch.randn(200, generator=generator(seed)) * 5).to(dtype)
        expected = logits.float().log_softmax(-1)
        found = log_probs(logits, 5)
        assert torch.equal(found.values, expected)
        best = sorted(range(200), key=lambda token: (-float(expected[token]), token))[:5]
        assert [(one.token_id, one.logprob) for one in found.top] == [(token, float(expected[token])) for token in best]
        details = found.of(17)
        assert (details.token_id, details.logprob, details.top) == (17, float(expected[17]), found.top)


def test_log_probs_of_equal_tokens_come_in_the_order_of_ids() -> None:
    logits = torch.tensor([0.0, 3.0, 0.0, 3.0, 0.0])
    assert [one.token_id for one in log_probs(logits, 4).top] == [1, 3, 0, 2]
    assert [one.token_id for one in log_probs(logits, 99).top] == [1, 3, 0, 2, 4]
    assert log_probs(logits, 0).top == ()
    assert [one.token_id for one in log_probs(torch.zeros(500), 90).top] == list(range(90))
