"""Faults that other servers had with beams and with rows of one batch, each as its kind, beside transformers alone."""

import math
import random
from functools import cache
from typing import Any

import pytest
import torch

from padserve.core import Generated, GenerationOptions
from padserve.generate.blocks import BlockPool
from padserve.generate.engine import EngineLimits, Generation, GenerationEngine
from padserve.generate.strategy import make_search
from padserve.text.stops import WatchedText
from tests.generate.models import VOCAB, Made, make

made = cache(make)


def unwatched() -> WatchedText:
    raise AssertionError("no stop strings were given")


def run(model: Made, asks: list[tuple[list[int], dict[str, Any]]], seed: int = 0) -> list[list[Generated]]:
    """Requests come by and by and leave at different steps."""
    rng = random.Random(seed)
    engine = GenerationEngine(model.generator, BlockPool(600, 16), EngineLimits(60, rows=64))
    outcomes: list[list[Any]] = [[] for _ in asks]
    waiting = []
    for (given, options), outcome in zip(asks, outcomes, strict=True):
        prompt = tuple(options.get("prompt", model.prompt(given)))
        chosen = {"end_ids": frozenset({model.end_id})} | options | {"prompt": prompt}
        asked = GenerationOptions(**chosen)
        source = given if model.is_seq2seq else None
        waiting.append(
            Generation(prompt, make_search(asked, unwatched), lambda emitted: None, outcome.append, source=source)
        )
    while waiting or engine.ready:
        for _ in range(rng.randrange(4)):
            if waiting:
                engine.submit(waiting.pop(0))
        engine.step()
    return [outcome[0] for outcome in outcomes]


def random_prompt(rng: random.Random, most: int = 30) -> list[int]:
    return [rng.randrange(5, VOCAB) for _ in range(rng.randrange(1, most))]


RULES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.4},
    {"no_repeat_ngram_size": 2},
    {"min_new_tokens": 6},
    {"suppress_tokens": (17, 86, 93)},
    {"bad_words": ((93,), (86, 20))},
    {"forced_eos_token_id": 2},
    {"repetition_penalty": 0.7, "no_repeat_ngram_size": 3, "min_new_tokens": 4},
]


@pytest.mark.parametrize("model_type", ["llama", "marian"])
def test_rules_hold_for_every_beam_at_every_step(model_type: str) -> None:
    """Not dropped under beams, not in the last step only, not those of another row (vllm#21546, CTranslate2 2.8.0)."""
    model, rng, asks = made(model_type), random.Random(4), []
    for number, rules in enumerate(RULES * 2):
        beams = {"num_beams": 2 + number % 3, "num_return_sequences": 2, "max_new_tokens": rng.randrange(5, 14)}
        asks.append((random_prompt(rng), beams | rules))
    for (given, options), outputs in zip(asks, run(model, asks), strict=True):
        stock = dict(options)
        if words := stock.pop("bad_words", None):
            stock["bad_words_ids"] = [list(word) for word in words]
        if "suppress_tokens" in stock:
            stock["suppress_tokens"] = list(stock["suppress_tokens"])
        tokens, scores = model.generate(given, **stock)
        assert [list(output.tokens) for output in outputs] == tokens, options
        assert [output.score for output in outputs] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0, -1.0])
def test_a_score_is_the_sum_of_its_tokens_over_their_number(length_penalty: float) -> None:
    """Also of a hypothesis that ended early; the prompt's length does not count (transformers#26624, #15869)."""
    model, rng = made("llama"), random.Random(1)
    options = {
        "num_beams": 4,
        "num_return_sequences": 4,
        "max_new_tokens": 12,
        "length_penalty": length_penalty,
        "early_stopping": True,
        "logprobs": 1,
        "end_ids": frozenset(range(20, 40)),
    }
    found = run(model, [(random_prompt(rng), options) for _ in range(12)])
    lengths = set()
    for outputs in found:
        for output in outputs:
            assert len(output.details) == len(output.tokens)
            total = math.fsum(details.logprob for details in output.details)
            assert output.score == pytest.approx(total / len(output.tokens) ** length_penalty, abs=1e-4)
            lengths.add(len(output.tokens))
    assert len(lengths) > 1


def test_rows_that_ask_for_other_numbers_of_log_probabilities() -> None:
    """Each row has as many as it asks for, of its own tokens (vllm#47126)."""
    model, rng = made("llama"), random.Random(2)
    asks = [
        (random_prompt(rng), {"num_beams": 1 + count % 4, "max_new_tokens": 4 + count, "logprobs": count or None})
        for count in range(8)
    ]
    for (given, options), outputs in zip(asks, run(model, asks), strict=True):
        for output in outputs:
            assert len(output.details) == (len(output.tokens) if options["logprobs"] else 0)
            for place, details in enumerate(output.details):
                want = model.logits(given, [*given, *output.tokens[:place]]).log_softmax(-1)
                assert details.token_id == output.tokens[place]
                assert details.logprob == pytest.approx(float(want[details.token_id]), abs=1e-4)
                assert [one.token_id for one in details.top] == want.topk(options["logprobs"]).indices.tolist()


@pytest.mark.parametrize("model_type", ["marian", "t5", "bart"])
def test_beams_after_a_given_start(model_type: str) -> None:
    """The first free step chooses among continuations of one row, not of equal ones (CTranslate2#277)."""
    model, rng = made(model_type), random.Random(6)
    for _ in range(4):
        given = random_prompt(rng)
        prompt = [*model.prompt(given), *random_prompt(rng, 4)]
        options = {"num_beams": 4, "num_return_sequences": 3, "max_new_tokens": 8}
        outputs = run(model, [(given, options | {"prompt": prompt})])[0]
        with torch.inference_mode():
            stock = model.stock.generate(
                torch.tensor([given]), decoder_input_ids=torch.tensor([prompt]), do_sample=False, **options
            )
        want = [sequence[len(prompt) :] for sequence in stock.tolist()]
        assert len({output.tokens for output in outputs}) == 3
        for output, sequence in zip(outputs, want, strict=True):
            assert list(output.tokens) == sequence[: len(output.tokens)]
            assert output.tokens[-1] == model.end_id or len(output.tokens) == 8


def test_a_rule_of_one_row_does_not_touch_another() -> None:
    """Rows with and without rules come and leave; each is as it is alone (TGI#1765, mlx-lm#1225)."""
    model, rng = made("llama"), random.Random(8)
    kinds: list[dict[str, Any]] = [
        {},
        {"frequency_penalty": 1.5},
        {"presence_penalty": 2.0},
        {"logit_bias": {17: 4.0}},
        {"repetition_penalty": 1.5},
        {"suppress_tokens": (93,)},
    ]
    asks = [(random_prompt(rng), {"max_new_tokens": rng.randrange(2, 20)} | rng.choice(kinds)) for _ in range(30)]
    together = run(model, asks, seed=1)
    for ask, outputs in zip(asks, together, strict=True):
        assert outputs == run(model, [ask])[0]
        given, options = ask
        if set(options) == {"max_new_tokens"}:
            assert [list(outputs[0].tokens)] == model.generate(given, **options)[0]


def test_44_at_once_five_times_are_one_output() -> None:
    """vllm#51187: in whatever company a request comes, its tokens are the same."""
    model, rng = made("llama"), random.Random(3)
    given, options = random_prompt(rng), {"max_new_tokens": 20}
    found = set()
    for repeat in range(5):
        others = [(random_prompt(rng), {"max_new_tokens": rng.randrange(1, 9)}) for _ in range(10)]
        outputs = run(model, [*[(given, options)] * 44, *others], seed=repeat)
        found |= {output.tokens for row in outputs[:44] for output in row}
    assert found == {tuple(model.generate(given, **options)[0][0])}
