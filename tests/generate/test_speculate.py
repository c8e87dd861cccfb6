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
from padserve.models.generators.base import Scores
from padserve.text.stops import StopMatcher, StopStrings, WatchedText
from tests.generate.models import CAUSAL, COMPILED_NAMES, SEQ2SEQ, VOCAB, Made, make

BLOCK = 16
made = cache(make)


class Numbers(WatchedText):
    """Tokens spelled as their numbers, each with a space behind it."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._matcher, self.tokens = StopMatcher(StopStrings(stop)), 0

    def push(self, token: int) -> None:
        self._matcher.push(f"{token} ")
        self.tokens += 1

    @property
    def stopped(self) -> bool:
        return bool(self._matcher.found)


class Oracle:
    """Guesses the tokens that it is told, a share of them wrong."""

    def __init__(self, tokens: Sequence[int], rng: random.Random | None = None, wrong: float = 0.0) -> None:
        self.tokens = [(token + (rng is not None and rng.random() < wrong)) % VOCAB for token in tokens]

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        return self.tokens[len(tokens) : len(tokens) + min(most, 8)]

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
        start = make_search(self.options, lambda: Numbers(self.options.stop))

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


def wanted(model: Made, given: list[int], **options: Any) -> list[int]:
    return model.generate(given, **options)[0][0]


@pytest.mark.parametrize("model_type", [*CAUSAL, *SEQ2SEQ, *COMPILED_NAMES])
def test_every_family_in_a_crowd(model_type: str) -> None:
    """Guesses beside requests without any, beams among them; a cache so small that requests are put back."""
    model, rng = made(model_type), random.Random(2)
    asks: list[tuple[Ask, list[int]]] = []
    for number in range(8):
        given, new = repeating(rng, rng.randrange(1, 50)), rng.randrange(2, 36)
        beams = 3 if number == 5 else 1
        tokens = wanted(model, given, max_new_tokens=new, num_beams=beams)
        drafter = Oracle([*model.prompt(given), *tokens], rng, 0.2) if number % 2 == 0 else None
        options = {"speculation": None} if number in (5, 7) else {}
        asks.append((Ask(model, given, drafter, max_new_tokens=new, num_beams=beams, **options), tokens))
    run(engine_of(model, num_blocks=14), *(ask for ask, _ in asks))
    accepted = 0
    for ask, tokens in asks:
        assert list(ask.output.tokens) == tokens
        if ask.options.num_beams == 1:
            assert [emitted.token_id for emitted in ask.emitted] == tokens
        assert (ask.output.speculation is None) == (ask.options.speculation is None)
        accepted += ask.output.speculation.accepted if ask.output.speculation is not None else 0
    assert accepted > 0


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "mistral", "marian", "t5"])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_right_and_wrong_guesses(model_type: str, share: float) -> None:
    """Whatever share of the guesses is wrong; the counts are those of what was guessed."""
    model, rng = made(model_type), random.Random(3)
    for given in (repeating(rng, 30), repeating(rng, 3)):
        tokens = wanted(model, given, max_new_tokens=30)
        whole = [*model.prompt(given), *tokens]
        ask = one(model, given, Oracle(whole, rng, share), max_new_tokens=30)
        assert list(ask.output.tokens) == tokens
        counts = ask.output.speculation
        assert counts is not None
        assert counts.steps == len(ask.arrivals)
        if share == 0.0:
            assert (counts.drafted, counts.accepted) == (len(tokens) - counts.steps,) * 2
            assert counts.steps == -(-len(tokens) // 9)
        elif share == 1.0:
            assert (counts.accepted, counts.steps) == (0, len(tokens))
            assert counts.drafted > 0
        else:
            assert 0 < counts.accepted < counts.drafted
            assert counts.accepted + counts.steps == len(tokens)


@pytest.mark.parametrize("most", range(1, 12))
def test_an_output_has_exactly_max_new_tokens(most: int) -> None:
    model, given = made("llama"), [9, 8, 7]
    whole = given + wanted(model, given, max_new_tokens=30)
    ask = one(model, given, Oracle(whole), max_new_tokens=most)
    assert list(ask.output.tokens) == whole[3 : 3 + most]
    assert (ask.output.reason, len(ask.emitted)) == ("length", most)


@pytest.mark.parametrize("how", ["end_ids", "stop_ids", "stop"])
@pytest.mark.parametrize("place", [0, 1, 4, 7, 8, 9, 17])
def test_a_stop_inside_an_accepted_run_cuts_the_rest(how: str, place: int) -> None:
    model, given = made("gpt2"), [9, 8, 7]
    tokens = wanted(model, given, max_new_tokens=30)
    end = tokens[place]
    first = tokens.index(end)
    options: dict[str, Any] = {"stop": (f" {end} ",)} if how == "stop" else {how: frozenset({end})}
    if how == "stop" and first == 0:
        options = {"stop": (f"{end} ",)}
    ask = one(model, given, Oracle(given + tokens), max_new_tokens=25, **options)
    assert list(ask.output.tokens) == tokens[: first + 1]
    assert [emitted.token_id for emitted in ask.emitted] == tokens[: first + 1]
    assert ask.output.reason == "stop"
    assert ask.output.speculation is not None
    assert ask.output.speculation.accepted <= first + 1


def test_a_guessed_end_that_is_not_true_ends_nothing() -> None:
    model, given = made("llama"), [9, 8, 7]
    tokens = wanted(model, given, max_new_tokens=12)
    guesses = [model.end_id if place % 3 == 1 else token for place, token in enumerate([*given, *tokens])]
    ask = one(model, given, Oracle(guesses), max_new_tokens=12)
    assert (list(ask.output.tokens), ask.output.reason) == (tokens, "length")


RULES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.6},
    {"no_repeat_ngram_size": 2},
    {"min_new_tokens": 14},
    {"repetition_penalty": 0.7, "no_repeat_ngram_size": 3, "min_new_tokens": 9},
]


@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize("model_type", ["llama", "marian"])
def test_rules_count_every_accepted_token(model_type: str, rules: dict[str, Any]) -> None:
    model, rng = made(model_type), random.Random(4)
    given = repeating(rng, 20)
    tokens = wanted(model, given, max_new_tokens=24, **rules)
    whole = [*model.prompt(given), *tokens]
    for drafter in (None, Oracle(whole), Oracle(whole, rng, 0.3)):
        ask = one(model, given, drafter, max_new_tokens=24, **rules)
        assert list(ask.output.tokens) == tokens


@pytest.mark.parametrize(
    "penalties", [{"frequency_penalty": 0.4}, {"presence_penalty": 1.5}, {"bias": {7: 0.6}}], ids=str
)
def test_penalties_have_their_whole_strength(penalties: dict[str, Any]) -> None:
    """By their definition, over transformers' logits: a token at a time."""
    model, given = made("llama"), [9, 8, 7]
    bias = penalties.get("bias", {})
    tokens: list[int] = []
    for _ in range(20):
        logits = model.logits(given, given + tokens).clone()
        for token in set(tokens):
            logits[token] -= penalties.get("frequency_penalty", 0) * tokens.count(token)
            logits[token] -= penalties.get("presence_penalty", 0)
        for token, value in bias.items():
            logits[token] += value
        tokens.append(int(logits.argmax()))
    options = {"logit_bias": bias} if bias else penalties
    for drafter in (None, Oracle(given + tokens)):
        ask = one(model, given, drafter, max_new_tokens=20, end_ids=frozenset(), **options)
        assert list(ask.output.tokens) == tokens
    assert ask.output.speculation is not None
    assert ask.output.speculation.accepted > 15


def test_log_probabilities_are_those_of_each_token() -> None:
    model, given = made("llama"), [9, 8, 7]
    tokens = wanted(model, given, max_new_tokens=15)
    ask = one(model, given, Oracle(given + tokens, random.Random(1), 0.2), max_new_tokens=15, logprobs=3)
    assert [details.token_id for details in ask.output.details] == tokens
    assert [emitted.details for emitted in ask.emitted] == list(ask.output.details)
    for place, details in enumerate(ask.output.details):
        want = model.logits(given, given + tokens[:place]).log_softmax(-1)
        assert details.logprob == pytest.approx(float(want[tokens[place]]), abs=1e-4)
        assert [top.token_id for top in details.top] == want.topk(3).indices.tolist()


def test_a_full_cache_drops_the_draft_and_no_request() -> None:
    """One guesses with the last free block, the other goes on without."""
    model, rng = made("llama"), random.Random(5)
    asks = []
    for _ in range(2):
        given = [rng.randrange(5, VOCAB) for _ in range(14)]
        whole = given + wanted(model, given, max_new_tokens=18)
        asks.append(Ask(model, given, Oracle(whole), max_new_tokens=18))
    engine = engine_of(model, num_blocks=4)
    for ask in asks:
        engine.submit(ask.generation)
    engine.step()
    assert [ask.arrivals for ask in asks] == [[9], [1]]
    run(engine)
    for ask in asks:
        assert list(ask.output.tokens) == wanted(model, ask.given, max_new_tokens=18)


def test_drafts_take_only_what_prompts_leave_of_a_step() -> None:
    """A step stays as short as it was, and a prompt is computed as soon."""
    model, given = made("llama"), [9, 8, 7]
    whole = given + wanted(model, given, max_new_tokens=60)
    engine = engine_of(model, step_tokens=10)
    runs = [Ask(model, given, Oracle(whole), max_new_tokens=60) for _ in range(2)]
    for ask in runs:
        engine.submit(ask.generation)
    engine.step()
    late = Ask(model, list(range(5, 30)), max_new_tokens=1)
    engine.submit(late.generation)
    for _ in range(3):
        assert engine.step() <= 10
    assert engine.waiting == 0
    assert late.generation.search is not None
    assert late.generation.search.rows[0].table.computed == 3 * 8
    run(engine)
    for ask in runs:
        assert list(ask.output.tokens) == whole[3:]


@pytest.mark.parametrize("model_type", ["gpt2", "llama", "marian"])
def test_no_draft_goes_past_the_window(model_type: str) -> None:
    model, rng = made(model_type), random.Random(6)
    given = repeating(rng, 90)
    new = 128 - len(model.prompt(given))
    tokens = wanted(model, given, max_new_tokens=new)
    whole = [*model.prompt(given), *tokens, *range(40)]
    ask = one(model, given, Oracle(whole), max_new_tokens=new)
    assert list(ask.output.tokens) == tokens


def test_a_guess_at_which_the_model_breaks_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = make("llama"), [9, 8, 7]
    tokens = wanted(model, given, max_new_tokens=12)
    bad = next(token for token in range(5, VOCAB) if token not in tokens)
    step = model.generator.step

    @torch.inference_mode()
    def poisoned(step_of: Any) -> Scores:
        logits = step(step_of).logits.clone()
        for place, row in enumerate(step_of.wanted.tolist()):
            if step_of.input_ids[row] == bad:
                logits[place] = float("nan")
        return Scores.of(logits)

    monkeypatch.setattr(model.generator, "step", poisoned)
    guesses = [bad if place % 4 == 0 else token for place, token in enumerate([*given, *tokens])]
    ask = one(model, given, Oracle(guesses), max_new_tokens=12)
    assert list(ask.output.tokens) == tokens
    ends = Ask(model, [9, bad], Oracle([9, bad, 1, 2, 3]), max_new_tokens=5)
    run(engine_of(model), ends)
    assert isinstance(ends.outcome, NonfiniteOutput)


def test_a_prompt_that_came_before_is_found_after_drafts() -> None:
    """Guesses are written behind a prompt that others share; its blocks stay what they were."""
    model, rng = made("llama"), random.Random(7)
    shared, engine = repeating(rng, 32), engine_of(model)
    for _ in range(4):
        given = [*shared, *repeating(rng, rng.randrange(1, 5))]
        whole = given + wanted(model, given, max_new_tokens=20)
        pair = [Ask(model, given, Oracle(whole, rng, 0.4), max_new_tokens=20) for _ in range(2)]
        run(engine, *pair)
        for ask in pair:
            assert list(ask.output.tokens) == whole[len(given) :]
    assert engine.pool.cached > 0
