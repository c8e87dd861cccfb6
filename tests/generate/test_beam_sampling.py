"""Beams that sample, beside transformers' own: the distribution of outputs, its limit, independence of neighbours."""

import math
import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch

from padserve.core import Generated, GenerationOptions
from padserve.generate.blocks import BlockPool
from padserve.generate.engine import EngineLimits, Generation, GenerationEngine
from padserve.generate.sample import Sampler, SamplingOptions
from padserve.generate.strategy import make_search
from padserve.text.stops import WatchedText
from tests.generate.models import VOCAB, Made, make

made = cache(make)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Steps are too small to be shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


Outputs = list[Generated]


def unwatched() -> WatchedText:
    raise AssertionError("no stop strings were given")


def run(model: Made, given: list[list[int]], options: list[dict[str, Any]]) -> list[Outputs]:
    """All at once."""
    engine = GenerationEngine(model.generator, BlockPool(2000, 16), EngineLimits(400, rows=200))
    outcomes: list[list[Any]] = [[] for _ in given]
    for prompt, chosen, outcome in zip(given, options, outcomes, strict=True):
        asked = GenerationOptions(tuple(prompt), end_ids=frozenset({model.end_id}), **chosen)
        search = make_search(asked, unwatched)
        engine.submit(Generation(prompt, search, lambda emitted: None, outcome.append))
    while engine.ready:
        engine.step()
    return [outcome[0] for outcome in outcomes]


def of_stock(model: Made, prompt: list[int], count: int, **options: Any) -> list[tuple[tuple[int, ...], float]]:
    """Best outputs of so many samples, up to the end token, and their scores."""
    torch.manual_seed(0)
    with torch.inference_mode():
        found = model.stock.generate(
            torch.tensor([prompt] * count),
            attention_mask=torch.ones(count, len(prompt), dtype=torch.long),
            do_sample=True,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
    best = []
    for sequence, score in zip(
        found.sequences[:, len(prompt) :].tolist(), found.sequences_scores.tolist(), strict=True
    ):
        end = sequence.index(model.end_id) + 1 if model.end_id in sequence else len(sequence)
        best.append((tuple(sequence[:end]), score))
    return best


def assert_alike(one: Counter[Any], other: Counter[Any]) -> None:
    """Pearson's chi-square of two samples below its 99.9 % point (Wilson and Hilferty); rare outcomes together."""
    counts = {key: (one[key], other[key]) for key in {*one, *other}}
    cells = [pair for pair in counts.values() if sum(pair) >= 20]
    cells.append(tuple(sum(pair[side] for pair in counts.values() if sum(pair) < 20) for side in (0, 1)))  # type: ignore[arg-type]
    cells = [pair for pair in cells if sum(pair)]
    share = one.total() / (one.total() + other.total())
    statistic = 0.0
    for pair in cells:
        for seen, likely in zip(pair, (share, 1 - share), strict=True):
            statistic += (seen - sum(pair) * likely) ** 2 / (sum(pair) * likely)
    freedom = len(cells) - 1
    assert freedom >= 4, counts
    spread = 2 / (9 * freedom)
    assert statistic < freedom * (1 - spread + 3.09 * math.sqrt(spread)) ** 3, counts


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 2, "max_new_tokens": 2, "top_k": 8},
        {"num_beams": 2, "max_new_tokens": 3, "top_k": 5, "temperature": 2.0, "length_penalty": 0.0},
    ],
    ids=str,
)
def test_outputs_are_as_likely_as_transformers_makes_them(options: dict[str, Any]) -> None:
    model, prompt, count = made("llama"), [9, 8, 7], 600
    stock = of_stock(model, prompt, 3000, **options)
    seeds = [options | {"do_sample": True, "seed": seed} for seed in range(count)]
    ours = [outputs[0] for outputs in run(model, [prompt] * count, seeds)]
    assert_alike(Counter(output.tokens for output in ours), Counter(tokens for tokens, _ in stock))
    scores = dict(stock)
    for output in ours:
        assert output.score == pytest.approx(scores.get(output.tokens, output.score), abs=1e-3)
    assert len({output.tokens for output in ours} & set(scores)) > 4


def test_a_low_temperature_is_beam_search() -> None:
    model, rng = made("gpt2"), random.Random(2)
    prompts = [[rng.randrange(5, VOCAB) for _ in range(rng.randrange(1, 20))] for _ in range(12)]
    beams = [
        {
            "num_beams": rng.choice([2, 4]),
            "max_new_tokens": rng.randrange(1, 15),
            "early_stopping": rng.choice([True, False]),
        }
        for _ in prompts
    ]
    for temperature in (1e-4, 0.0):
        sampled = [one | {"do_sample": True, "temperature": temperature, "seed": 5} for one in beams]
        for prompt, options, outputs in zip(prompts, beams, run(model, prompts, sampled), strict=True):
            assert [list(output.tokens) for output in outputs] == model.generate(prompt, **options)[0]


def test_a_seed_gives_the_same_alone_and_among_others() -> None:
    model, prompts = made("llama"), [[9, 8, 7], [5], [50, 60]]
    options = [
        {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 9, "do_sample": True, "seed": seed, "top_p": 0.9}
        for seed in range(3)
    ]
    alone = [run(model, [prompt], [chosen])[0] for prompt, chosen in zip(prompts, options, strict=True)]
    unseeded = {"num_beams": 2, "max_new_tokens": 4, "do_sample": True}
    crowd = run(model, [[9], *prompts, [9]], [unseeded, *options, unseeded])
    assert [[one.tokens for one in outputs] for outputs in crowd[1:-1]] == [[one.tokens for one in o] for o in alone]
    assert len({outputs[0].tokens for outputs in alone}) == 3
    other = run(model, [prompts[0]], [options[0] | {"seed": 99}])[0]
    assert other[0].tokens != alone[0][0].tokens


def test_nothing_that_is_ruled_out_is_drawn() -> None:
    model = made("llama")
    options = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 5, "do_sample": True, "top_k": 1}
    few = dict.fromkeys((17, 18, 19), 50.0)
    for outputs in run(model, [[9, 8]] * 20, [options | {"seed": seed, "logit_bias": few} for seed in range(20)]):
        assert len(outputs) == 4
        assert all(set(output.tokens) <= {17, 18, 19} for output in outputs)


def test_several_are_drawn_without_replacement_by_what_is_left() -> None:
    """Ordered pairs, beside p(a) p(b) / (1 - p(a)); a place of probability 0 is never one."""
    likely = torch.tensor([0.5, 0.3, 0.15, 0.05, 0.0])
    sampler, total = Sampler(SamplingOptions(do_sample=True), seed=3), 3000
    drawn = Counter(tuple(sampler.several(likely.log(), 2).tolist()) for _ in range(total))
    expected = Counter(
        {
            (a, b): round(10 * total * float(likely[a] * likely[b] / (1 - likely[a])))
            for a in range(4)
            for b in range(4)
            if a != b
        }
    )
    assert set(drawn) <= set(expected)
    assert_alike(drawn, expected)
    assert sorted(sampler.several(likely.log(), 9).tolist()) == [0, 1, 2, 3]
    assert sampler.draws == total + 1
