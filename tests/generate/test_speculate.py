"""Speculation against `transformers.generate` without any: the same tokens, whatever is guessed."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from padserve.core import Emitted, Generated, GenerationOptions, SpeculationSpec
from padserve.errors import NonfiniteOutput, PadserveError
from padserve.generate.blocks import BlockPool
from padserve.generate.engine import EngineLimits, Generation, GenerationEngine
from padserve.generate.search.base import Search
from padserve.generate.sequence import Row
from padserve.generate.strategy import make_search
from tests.generate.models import CAUSAL, SEQ2SEQ, VOCAB, Made, make

BLOCK = 16
made = cache(make)


class Oracle:
    """Guesses what transformers says, and where ``wrong`` says so something else."""

    def __init__(self, tokens: Sequence[int], wrong: frozenset[int] = frozenset()) -> None:
        self.tokens, self.wrong = tokens, wrong

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        places = range(len(tokens), min(len(tokens) + most, len(self.tokens)))
        return [(self.tokens[place] + (place in self.wrong)) % VOCAB for place in places]

    def learn(self, drafted: int, accepted: int) -> None:
        pass


class Ask:
    """A request, and what became of it. ``drafter``: in place of the method's own."""

    def __init__(self, model: Made, given: list[int], drafter: Any = None, most: int = 8, **options: Any) -> None:
        self.emitted: list[Emitted] = []
        self.arrivals: list[int] = []
        self.outcome: list[Generated] | PadserveError | None = None
        self.given = given
        source = tuple(given) if model.is_seq2seq else None
        self.options = GenerationOptions(
            tuple(model.prompt(given)),
            source,
            **{"end_ids": frozenset({model.end_id}), "speculation": SpeculationSpec("ngram", most, True)} | options,
        )
        start = make_search(self.options, lambda tokens: " ".join(map(str, tokens)) + " ")

        def begin(row: Row) -> Search:
            search = start(row)
            if drafter is not None:
                assert row.speculation is not None
                row.speculation = replace(row.speculation, drafter=drafter)
            return search

        self.generation = Generation(self.options.prompt, begin, self.arrive, self.end, source=source)

    def arrive(self, emitted: list[Emitted]) -> None:
        self.emitted += emitted
        self.arrivals.append(len(emitted))

    def end(self, outcome: list[Generated] | PadserveError) -> None:
        assert self.outcome is None, "ended twice"
        self.outcome = outcome

    @property
    def output(self) -> Generated:
        assert isinstance(self.outcome, list), self.outcome
        return self.outcome[0]


def engine_of(model: Made, num_blocks: int = 400, step_tokens: int = 60) -> GenerationEngine:
    return GenerationEngine(model.generator, BlockPool(num_blocks, BLOCK), EngineLimits(step_tokens, rows=64))


def run(engine: GenerationEngine, *asks: Ask) -> None:
    for ask in asks:
        engine.submit(ask.generation)
    for _ in range(3000):
        if not engine.ready:
            assert engine.pool.used == 0
            return
        engine.step()
    raise AssertionError("the engine does not come to an end")


def one(model: Made, given: list[int], drafter: Any = None, **options: Any) -> Ask:
    ask = Ask(model, given, drafter, **options)
    run(engine_of(model), ask)
    return ask


def repeating(rng: random.Random, length: int) -> list[int]:
    """A text in which much comes again."""
    words = [[rng.randrange(5, VOCAB) for _ in range(rng.randrange(2, 6))] for _ in range(4)]
    text: list[int] = []
    while len(text) < length:
        text += rng.choice(words)
    return text[:length]


def told(tokens: Sequence[int], model: Made) -> list[int]:
    """As transformers would be: its pipeline stops after the end token."""
    return list(tokens[: tokens.index(model.end_id) + 1]) if model.end_id in tokens else list(tokens)


@pytest.mark.parametrize("model_type", [*CAUSAL, *SEQ2SEQ])
def test_every_family_in_a_crowd(model_type: str) -> None:
    """Guesses beside requests without any, beams among them; a cache so small that requests are put back."""
    model, rng = made(model_type), random.Random(2)
    asks = []
    for number in range(10):
        given = repeating(rng, rng.randrange(1, 50))
        options: dict[str, Any] = {"max_new_tokens": rng.randrange(1, 50)}
        if number % 5 == 4:
            options |= {"speculation": None, "num_beams": rng.choice([1, 3])}
        asks.append(Ask(model, given, **options))
    run(engine_of(model, num_blocks=22), *asks)
    for ask in asks:
        want = model.generate(ask.given, max_new_tokens=ask.options.max_new_tokens, num_beams=ask.options.num_beams)[0][
            0
        ]
        assert list(ask.output.tokens) == want
        if ask.options.num_beams == 1:
            assert [emitted.token_id for emitted in ask.emitted] == want
        assert (ask.output.speculation is None) == (ask.options.speculation is None)
