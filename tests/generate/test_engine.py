"""The engine against `transformers.generate`, one request alone: tokens and scores must be the same in any company."""

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from padserve.core import Emitted, Generated
from padserve.errors import DeadlineExceeded, InternalError, NonfiniteOutput, PadserveError
from padserve.generate.blocks import BlockPool
from padserve.generate.engine import EngineLimits, Generation, GenerationEngine
from padserve.generate.search.base import Search
from padserve.generate.search.beam import BeamOptions, BeamSearch
from padserve.generate.search.plain import PlainSearch
from padserve.generate.sequence import Limits, Row
from padserve.models.generators.base import Scores
from tests.generate.models import CAUSAL, COMPILED_NAMES, SEQ2SEQ, VOCAB, Made, make

BLOCK = 16
made = cache(make)


class Ask:
    """A request, and what became of it."""

    def __init__(self, model: Made, given: list[int], options: dict[str, Any], **more: Any) -> None:
        self.given, self.options = given, options
        self.emitted: list[Emitted] = []
        self.outcome: list[Generated] | PadserveError | None = None
        limits = Limits(options["max_new_tokens"], frozenset({model.end_id}))
        self.generation = Generation(
            model.prompt(given),
            lambda row: search(row, limits, options),
            self.emitted.extend,
            self.end,
            source=given if model.is_seq2seq else None,
            **more,
        )

    def end(self, outcome: list[Generated] | PadserveError) -> None:
        assert self.outcome is None, "ended twice"
        self.outcome = outcome

    @property
    def outputs(self) -> list[Generated]:
        assert isinstance(self.outcome, list), self.outcome
        return self.outcome


def search(row: Row, limits: Limits, options: dict[str, Any]) -> Search:
    if options.get("num_beams", 1) == 1:
        return PlainSearch(row, limits, None, [None])
    beams = {key: value for key, value in options.items() if key != "max_new_tokens"}
    return BeamSearch(row, limits, None, BeamOptions(**beams))


def engine_of(model: Made, num_blocks: int = 400, step_tokens: int = 40) -> GenerationEngine:
    return GenerationEngine(model.generator, BlockPool(num_blocks, BLOCK), EngineLimits(step_tokens, rows=64))


def run(
    engine: GenerationEngine, asks: list[Ask], rng: random.Random, each_step: Callable[[], None] | None = None
) -> None:
    """Requests come by and by; no more steps than so many are needed."""
    waiting = list(asks)
    for _ in range(5000):
        for _ in range(rng.randrange(3)):
            if waiting:
                engine.submit(waiting.pop(0).generation)
        if not waiting and not engine.ready:
            return
        engine.step()
        if each_step is not None:
            each_step()
    raise AssertionError("the engine does not come to an end")


def mixed_options(rng: random.Random, most: int) -> dict[str, Any]:
    options: dict[str, Any] = {"max_new_tokens": rng.randrange(1, most), "num_beams": rng.choice([1, 1, 2, 4])}
    if options["num_beams"] > 1:
        options["early_stopping"] = rng.choice([True, False, "never"])
        options["length_penalty"] = rng.choice([0.0, 1.0, 2.0, -0.5])
        options["num_return_sequences"] = rng.randrange(1, options["num_beams"] + 1)
    return options


def mixed_asks(model: Made, rng: random.Random, count: int, most: int = 30) -> list[Ask]:
    return [
        Ask(model, [rng.randrange(5, VOCAB) for _ in range(rng.randrange(1, 60))], mixed_options(rng, most))
        for _ in range(count)
    ]


def check(model: Made, ask: Ask) -> None:
    tokens, scores = model.generate(ask.given, **ask.options)
    assert [list(output.tokens) for output in ask.outputs] == tokens, ask.options
    if scores:
        assert [output.score for output in ask.outputs] == pytest.approx(scores, abs=1e-4)
    else:
        assert [one.token_id for one in ask.emitted] == tokens[0]
    for output in ask.outputs:
        assert output.reason == ("stop" if output.tokens[-1] == model.end_id else "length")


@pytest.mark.parametrize("num_blocks", [400, 25], ids=["roomy", "tight"])
@pytest.mark.parametrize(
    "model_type",
    ["llama", "gpt2", "mistral", "marian", "m2m_100", "t5"]
    + [name for name in COMPILED_NAMES if name.split()[-1] in ("llama", "marian", "m2m_100", "t5")],
)
def test_32_mixed_requests_equal_generate_alone(model_type: str, num_blocks: int) -> None:
    """Prompts in parts, rows that come and go, beams that fork; in a tight cache also requests that are put back."""
    model, rng = made(model_type), random.Random(7)
    engine, asks = engine_of(model, num_blocks), mixed_asks(model, rng, 32)
    run(engine, asks, rng)
    for ask in asks:
        check(model, ask)
    assert engine.pool.used == 0


@pytest.mark.parametrize("model_type", [*CAUSAL, *SEQ2SEQ, *COMPILED_NAMES])
def test_every_family(model_type: str) -> None:
    model, rng = made(model_type), random.Random(1)
    engine, asks = engine_of(model), mixed_asks(model, rng, 6)
    run(engine, asks, rng)
    for ask in asks:
        check(model, ask)


def test_a_sliding_window_is_not_compiled() -> None:
    with pytest.raises(NotImplementedError, match=r"sliding window|no instructions"):
        make("compiled mistral")


def test_a_prompt_that_came_before_is_not_computed_again() -> None:
    model = made("llama")
    engine, given = engine_of(model), list(range(5, 69))
    first, second = (Ask(model, [*given, last], {"max_new_tokens": 5}) for last in (70, 71))
    steps = []
    for ask in (first, second):
        engine.submit(ask.generation)
        ran = []
        while engine.ready:
            ran.append(engine.step())
        steps.append(sum(ran))
        check(model, ask)
    assert steps == [65 + 4, 1 + 4]
    assert (engine.pool.used, engine.pool.cached) == (0, 4)


def test_a_long_prompt_does_not_stall_what_runs() -> None:
    """Every step brings the running request its token, however long the other's prompt is."""
    model = made("llama")
    engine = engine_of(model, step_tokens=16)
    runs = Ask(model, [5, 6], {"max_new_tokens": 12})
    engine.submit(runs.generation)
    engine.step()
    engine.submit(Ask(model, list(range(5, 105)), {"max_new_tokens": 2}).generation)
    for number in range(2, 7):
        assert engine.step() <= 17
        assert len(runs.emitted) == number


def test_an_aborted_request_frees_its_cache_within_one_step() -> None:
    model = made("marian")
    engine = engine_of(model)
    asks = [Ask(model, [5, 6, 7], {"max_new_tokens": 25, "num_beams": 4}) for _ in range(3)]
    for ask in asks:
        engine.submit(ask.generation)
    for _ in range(4):
        engine.step()
    for ask in asks[1:]:
        engine.abort(ask.generation)
    engine.step()
    assert engine.running == len(asks[0].generation.search.rows)  # type: ignore[union-attr]
    while engine.ready:
        engine.step()
    check(model, asks[0])
    assert [ask.outcome for ask in asks[1:]] == [None, None]
    assert engine.pool.used == 0


def test_500_random_requests_with_random_aborts_leave_nothing() -> None:
    model, rng = made("llama"), random.Random(3)
    engine, asks = engine_of(model, num_blocks=60), mixed_asks(model, rng, 500, most=7)

    def abort_some() -> None:
        for ask in rng.sample(asks, 4):
            if ask.outcome is None and rng.random() < 0.3:
                engine.abort(ask.generation)

    run(engine, asks, rng, abort_some)
    assert engine.pool.used == 0
    assert engine.pool.available == 59
    assert all(ask.outcome is not None or ask.generation.aborted for ask in asks)
    finished = [ask for ask in asks if ask.outcome is not None]
    assert len(finished) > 50
    for ask in rng.sample(finished, 25):
        check(model, ask)


def test_a_deadline_ends_a_running_request() -> None:
    model = made("llama")
    engine = engine_of(model)
    late, other = (Ask(model, [5, 6], {"max_new_tokens": 20}) for _ in range(2))
    for ask in (late, other):
        engine.submit(ask.generation)
    engine.step()
    late.generation.deadline = 0.0
    while engine.ready:
        engine.step()
    assert isinstance(late.outcome, DeadlineExceeded)
    check(model, other)
    assert engine.pool.used == 0


def test_a_request_that_the_cache_cannot_hold_ends_alone() -> None:
    model = made("llama")
    engine = engine_of(model, num_blocks=4)
    too_long, grows, fits = (
        Ask(model, list(range(5, 5 + length)), {"max_new_tokens": new}) for length, new in ((60, 2), (30, 25), (10, 5))
    )
    for ask in (too_long, grows, fits):
        engine.submit(ask.generation)
    while engine.ready:
        engine.step()
    assert isinstance(too_long.outcome, InternalError)
    assert isinstance(grows.outcome, InternalError)
    assert "cache" in str(grows.outcome)
    check(model, fits)
    assert engine.pool.used == 0


def test_nan_ends_the_request_that_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("llama")
    step = model.generator.step

    @torch.inference_mode()
    def poisoned(given: Any) -> Scores:
        logits = step(given).logits.clone()
        for place, row in enumerate(given.wanted.tolist()):
            if given.input_ids[row] == 77:
                logits[place] = float("nan")
        return Scores.of(logits)

    monkeypatch.setattr(model.generator, "step", poisoned)
    engine = engine_of(model)
    bad, good = Ask(model, [5, 77], {"max_new_tokens": 3}), Ask(model, [5, 6], {"max_new_tokens": 3})
    for ask in (bad, good):
        engine.submit(ask.generation)
    while engine.ready:
        engine.step()
    assert isinstance(bad.outcome, NonfiniteOutput)
    check(model, good)
    assert engine.pool.used == 0


def test_a_step_that_raises_ends_its_requests_and_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("gpt2")
    engine = engine_of(model)
    ask = Ask(model, [5, 6], {"max_new_tokens": 3})
    engine.submit(ask.generation)
    with monkeypatch.context() as patch:
        patch.setattr(model.generator, "step", lambda given: 1 / 0)
        engine.step()
    assert isinstance(ask.outcome, InternalError)
    assert engine.pool.used == 0
    again = Ask(model, [5, 6], {"max_new_tokens": 3})
    engine.submit(again.generation)
    while engine.ready:
        engine.step()
    check(model, again)


def test_what_waits_at_the_end_ends_with_an_error() -> None:
    model = made("t5")
    engine = engine_of(model)
    asks = [Ask(model, [5, 6], {"max_new_tokens": 9}) for _ in range(2)]
    engine.submit(asks[0].generation)
    engine.step()
    engine.submit(asks[1].generation)
    engine.drain(InternalError("over"))
    assert [str(ask.outcome) for ask in asks] == ["over", "over"]
    assert engine.pool.used == 0


def test_stop_text_and_log_probabilities() -> None:
    """Both searches end at a stop string, and tell how likely each token was by the model's own logits."""
    model, given = made("llama"), [9, 8, 7]
    tokens = model.generate(given, max_new_tokens=8)[0][0]
    limits = Limits(8, frozenset({model.end_id}))
    for num_beams in (1, 3):
        outcome: list[Any] = []

        def start(row: Row, num_beams: int = num_beams) -> Search:
            def stops(row: Row, *more: int) -> bool:
                return len(row.generated) + len(more) == 3

            if num_beams == 1:
                return PlainSearch(row, limits, None, [None], logprobs=2, stops_text=stops)
            return BeamSearch(row, limits, None, BeamOptions(num_beams), logprobs=2, stops_text=stops)

        engine = engine_of(model)
        engine.submit(Generation(given, start, lambda emitted: None, outcome.append))
        while engine.ready:
            engine.step()
        output = outcome[0][0]
        assert (output.reason, len(output.tokens), len(output.details)) == ("stop", 3, 3)
        if num_beams == 1:
            assert list(output.tokens) == tokens[:3]
        for place, details in enumerate(output.details):
            want = model.logits(given, given + list(output.tokens[:place])).log_softmax(-1)
            assert details.token_id == output.tokens[place]
            assert details.logprob == pytest.approx(float(want[details.token_id]), abs=1e-4)
            assert [one.token_id for one in details.top] == want.topk(2).indices.tolist()


def test_diverse_groups_choose_other_tokens() -> None:
    """With a strong penalty no two groups take the same token in a step."""
    model, given = made("gpt2"), [9, 8, 7]
    limits, outcome = Limits(6, frozenset()), []
    options = BeamOptions(3, num_return_sequences=3, groups=3, diversity=1000.0)
    engine = engine_of(model)
    engine.submit(Generation(given, lambda row: BeamSearch(row, limits, None, options), lambda e: None, outcome.append))
    while engine.ready:
        engine.step()
    outputs = [output.tokens for output in outcome[0]]
    assert len(outputs) == 3
    for step in zip(*outputs, strict=True):
        assert len(set(step)) == 3
