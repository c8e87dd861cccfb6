"""Logits rules beside transformers' own processors; a row's state beside one made afresh of the same tokens."""

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast
from transformers.generation.logits_process import LogitsProcessor, LogitsProcessorList
from transformers.generation.utils import GenerationMixin

from padserve.errors import InvalidField
from padserve.generate.logits import (
    BadWords,
    LogitsOptions,
    NoRepeatNgram,
    Pipeline,
    RepetitionPenalty,
    RowState,
)
from padserve.text.bad_words import bad_word_ids
from padserve.text.tokenizer import Tokenizer

VOCAB = 40
NEVER = float("-inf")


class Stock(GenerationMixin):
    """As much of a model as transformers needs to list its processors."""

    config = SimpleNamespace(is_encoder_decoder=False)


def stock(prompt_length: int, eos: list[int], **options: Any) -> LogitsProcessorList:
    """What transformers' `generate` would apply, in its order."""
    config = GenerationConfig(**options)
    config._eos_token_tensor = torch.tensor(eos) if eos else None
    return Stock()._get_logits_processor(config, input_ids_seq_length=prompt_length, device="cpu")


def noise(seed: int, size: int = VOCAB) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 3


def history(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(6) for _ in range(length)]


OPTIONS = {
    "repetition_penalty": lambda rng: rng.choice([0.3, 1.1, 2.0]),
    "no_repeat_ngram_size": lambda rng: rng.randint(1, 4),
    "bad_words": lambda rng: [history(rng, rng.randint(1, 4)) for _ in range(rng.randint(1, 8))],
    "logit_bias": lambda rng: {rng.randrange(VOCAB): rng.uniform(-9, 9) for _ in range(5)},
    "min_length": lambda rng: rng.randint(1, 12),
    "min_new_tokens": lambda rng: rng.randint(1, 8),
    "forced_bos_token_id": lambda rng: rng.randrange(5),
    "forced_eos_token_id": lambda rng: rng.choice([3, [3, 5]]),
    "suppress_tokens": lambda rng: rng.sample(range(5, VOCAB), 5),
    "begin_suppress_tokens": lambda rng: rng.sample(range(VOCAB), 5),
}


def in_their_terms(options: dict[str, Any], max_length: int) -> dict[str, Any]:
    theirs = dict(options, max_length=max_length)
    if bias := theirs.pop("logit_bias", None):
        theirs["sequence_bias"] = [[[token], value] for token, value in bias.items()]
    if bad := theirs.pop("bad_words", None):
        theirs["bad_words_ids"] = bad
    return theirs


def assert_as_stock(seed: int, names: list[str]) -> None:
    rng = random.Random(seed)
    options = {name: OPTIONS[name](rng) for name in names}
    eos = rng.choice([[2], [2, 4], [39]])
    prompt_length, max_length = rng.choice([1, 1, 2, 6]), 16
    if options.get("bad_words") and all(word in [[end] for end in eos] for word in options["bad_words"]):
        options["bad_words"].append([0, 1])  # transformers cannot do with none
    theirs = stock(prompt_length, eos, **in_their_terms(options, max_length))
    pipeline = Pipeline(LogitsOptions(**options, eos_token_ids=eos, max_length=max_length))
    tokens = history(rng, prompt_length)
    state = pipeline.start(tokens)
    while len(tokens) < max_length:
        scores = noise(1000 * seed + len(tokens))
        before = scores.clone()
        expected = theirs(torch.tensor([tokens]), scores[None].clone())[0]
        assert torch.equal(pipeline.apply(scores, state), expected), (options, tokens)
        assert torch.equal(scores, before)
        fresh = scores
        for processor in pipeline.processors:
            fresh = processor.process(fresh, torch.tensor(tokens), prompt_length)
        assert torch.equal(fresh, expected)
        tokens.append(rng.randrange(6))
        state.append(tokens[-1])


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_alone(name: str) -> None:
    for seed in range(12):
        assert_as_stock(seed, [name])


def test_any_options_together_in_their_order() -> None:
    for seed in range(60):
        rng = random.Random(-seed)
        assert_as_stock(seed, [name for name in OPTIONS if rng.random() < 0.5])


def test_a_long_prompt_and_a_large_vocabulary() -> None:
    rng = random.Random(3)
    tokens = [rng.randrange(30) for _ in range(700)]
    theirs = stock(600, [2], repetition_penalty=1.3, no_repeat_ngram_size=2)
    pipeline = Pipeline(LogitsOptions(repetition_penalty=1.3, no_repeat_ngram_size=2, eos_token_ids=[2]))
    scores = noise(1, 50_257)
    result = pipeline.apply(scores, pipeline.start(tokens[:600], tokens[600:]))
    assert torch.equal(result, theirs(torch.tensor([tokens]), scores[None])[0])


def test_rows_that_have_minus_infinity_already() -> None:
    options = {"repetition_penalty": 1.5, "logit_bias": {1: 2.0, 7: -3.0}, "no_repeat_ngram_size": 2}
    scores = noise(5).index_fill(0, torch.tensor([0, 1, 2, 9]), NEVER)
    tokens = [0, 1, 2, 0]
    expected = stock(2, [2], **in_their_terms(options, 20))(torch.tensor([tokens]), scores[None].clone())[0]
    pipeline = Pipeline(LogitsOptions(**options))
    assert torch.equal(pipeline.apply(scores, pipeline.start(tokens[:2], tokens[2:])), expected)
    assert not expected.isnan().any()


def test_neutral_options_cost_nothing() -> None:
    options = LogitsOptions(eos_token_ids=[2], logit_bias={3: 0.0}, max_length=9)
    assert Pipeline(options).processors == ()
    scores = noise(0)
    pipeline = Pipeline(LogitsOptions())
    assert pipeline.apply(scores, pipeline.start([1, 2])) is scores


def test_an_end_token_alone_is_no_bad_word() -> None:
    assert BadWords.of([[2], []], eos_token_ids=[2]) is None
    banned = BadWords.of([[2], [1, 2]], eos_token_ids=[2])
    assert banned is not None
    assert banned.process(noise(0), [5, 1], 1).isneginf().nonzero().tolist() == [[2]]
    assert not banned.process(noise(0), [5, 3], 1).isneginf().any()
    assert not banned.process(noise(0), [], 0).isneginf().any()


def test_ids_without_a_score_are_passed_over() -> None:
    tokens, scores = [3, 99, 3, 99, 3], noise(2)
    theirs = stock(5, [2], repetition_penalty=2.0, no_repeat_ngram_size=2)(torch.tensor([tokens]), scores[None])[0]
    options = LogitsOptions(
        repetition_penalty=2.0,
        no_repeat_ngram_size=2,
        presence_penalty=0.0,
        bad_words=[[99], [3, 77]],
        logit_bias={99: 4.0},
        suppress_tokens=[99, -1],
        min_new_tokens=5,
        eos_token_ids=[88],
    )
    pipeline = Pipeline(options)
    assert torch.equal(pipeline.apply(scores, pipeline.start(tokens)), theirs)
    counted = Pipeline(LogitsOptions(frequency_penalty=1.0, presence_penalty=1.0))
    changed = counted.apply(scores, counted.start([1], tokens)) - scores
    assert changed.nonzero().tolist() == [[3]]


def test_stop_tokens_wait_for_the_minimum_as_end_tokens_do() -> None:
    pipeline = Pipeline(LogitsOptions(min_new_tokens=2, eos_token_ids=[2], stop_token_ids=[7]))
    assert pipeline.apply(noise(0), pipeline.start([1, 1], [5])).isneginf().nonzero().flatten().tolist() == [2, 7]
    assert not pipeline.apply(noise(0), pipeline.start([1, 1], [5, 5])).isneginf().any()


@pytest.mark.parametrize("frequency", [0.0, 0.7, -1.5])
@pytest.mark.parametrize("presence", [0.0, 1.1, -0.4])
def test_presence_and_frequency_count_generated_tokens_only(frequency: float, presence: float) -> None:
    prompt, generated, scores = [1, 1, 2, 3], [2, 5, 5, 5, 2, 9], noise(8)
    expected = scores.clone()
    for token in set(generated):
        expected[token] -= generated.count(token) * frequency + presence
    pipeline = Pipeline(LogitsOptions(frequency_penalty=frequency, presence_penalty=presence))
    torch.testing.assert_close(pipeline.apply(scores, pipeline.start(prompt, generated)), expected)
    assert torch.equal(pipeline.apply(scores, pipeline.start(prompt)), scores)


class Subtract(LogitsProcessor):
    def __init__(self, generated: list[int], presence: float) -> None:
        self._ids, self._presence = torch.tensor(sorted(set(generated))), presence

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores = scores.clone()
        scores[:, self._ids] -= self._presence
        return scores


def test_occurrence_penalties_follow_the_repetition_penalty() -> None:
    prompt, generated, scores = [1, 2], [3, 4, 1], noise(4)
    theirs = stock(2, [2], repetition_penalty=1.7, no_repeat_ngram_size=1)
    theirs.insert(1, Subtract(generated, 0.9))
    pipeline = Pipeline(LogitsOptions(repetition_penalty=1.7, no_repeat_ngram_size=1, presence_penalty=0.9))
    expected = theirs(torch.tensor([[*prompt, *generated]]), scores[None])[0]
    assert torch.equal(pipeline.apply(scores, pipeline.start(prompt, generated)), expected)


def forced_of(pipeline: Pipeline, prompt: list[int], count: int) -> list[int | None]:
    """The forced tokens, None where the row is free."""
    state, found = pipeline.start(prompt), []
    for place in range(count):
        scores = pipeline.apply(noise(place), state)
        allowed = (~scores.isneginf()).nonzero().flatten().tolist()
        found.append(allowed[0] if len(allowed) == 1 else None)
        assert len(allowed) > 1 or scores[allowed[0]] == 0.0
        state.append(allowed[0])
    return found


def test_a_target_prefix_is_said_first_whatever_else_holds() -> None:
    hostile = {"suppress_tokens": [8, 9], "bad_words": [[8], [9]], "no_repeat_ngram_size": 1, "min_new_tokens": 3}
    prefix = Pipeline(LogitsOptions(target_prefix=[8, 9, 9], eos_token_ids=[9], **hostile))
    assert forced_of(prefix, [1, 2], 5) == [8, 9, 9, None, None]


def test_a_target_prefix_stands_behind_a_forced_first_token() -> None:
    both = Pipeline(LogitsOptions(target_prefix=[8, 9], forced_bos_token_id=30))
    assert forced_of(both, [1], 4) == [30, 8, 9, None]
    assert forced_of(both, [1, 1], 4) == [8, 9, None, None]
    last = Pipeline(LogitsOptions(target_prefix=[8], forced_bos_token_id=30, forced_eos_token_id=2, max_length=5))
    assert forced_of(last, [1], 4) == [30, 8, None, 2]


def test_a_target_prefix_is_no_new_text() -> None:
    """Minimum, first-token rules and occurrence penalties start behind it, as behind a prompt that has it."""
    rules: dict[str, Any] = {
        "min_new_tokens": 2,
        "eos_token_ids": [2],
        "begin_suppress_tokens": [6, 7],
        "presence_penalty": 1.0,
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 2,
    }
    forced, given = Pipeline(LogitsOptions(target_prefix=[8, 9], **rules)), Pipeline(LogitsOptions(**rules))
    one, other = forced.start([1, 3], [8, 9]), given.start([1, 3, 8, 9])
    for place, token in enumerate([9, 8, 9, 5, 8]):
        assert torch.equal(forced.apply(noise(place), one), given.apply(noise(place), other))
        one.append(token)
        other.append(token)


EVERYTHING = Pipeline(
    LogitsOptions(
        repetition_penalty=1.2,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        no_repeat_ngram_size=3,
        bad_words=[[1, 2], [0, 0, 1], [3]],
        min_new_tokens=3,
        eos_token_ids=[2],
        begin_suppress_tokens=[1],
        target_prefix=[0, 1],
    )
)


@dataclass
class Lives:
    """Rows that are forked and rolled back, each with a plain list of what it should hold."""

    prompt: list[int]
    rows: list[tuple[RowState, list[int]]] = field(default_factory=list)

    def check(self) -> None:
        for state, tokens in self.rows:
            fresh = EVERYTHING.start(self.prompt, tokens)
            assert torch.equal(EVERYTHING.apply(noise(1), state), EVERYTHING.apply(noise(1), fresh))
            assert state.counts() == fresh.counts()
            assert state.following(3) == fresh.following(3)
            assert (len(state), state.generated) == (len(self.prompt) + len(tokens), tokens)

    def do(self, action: str, row: int, number: int) -> None:
        state, tokens = self.rows[row % len(self.rows)]
        if action == "append":
            state.append(number % 4)
            tokens.append(number % 4)
        elif action == "fork":
            self.rows.append((state.fork(), list(tokens)))
        else:
            kept = number % (len(tokens) + 1)
            state.rollback(len(self.prompt) + kept)
            del tokens[kept:]


Actions = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "fork", "rollback"]), st.integers(0, 5), st.integers(0, 50)
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), Actions, st.integers(1, 5))
def test_forks_and_rollbacks_leave_what_a_fresh_row_has(
    prompt: list[int], actions: list[tuple[str, int, int]], every: int
) -> None:
    lives = Lives(prompt)
    lives.rows.append((EVERYTHING.start(prompt), []))
    for place, action in enumerate(actions):
        lives.do(*action)
        if place % every == 0:  # an index that is some steps behind must catch up
            lives.check()
    lives.check()


def test_a_rollback_takes_the_newest_ngrams_out() -> None:
    state = RowState.of([0, 1, 2, 1, 3, 1], 1)
    assert state.following(2) == [2, 3]
    state.rollback(4)
    assert state.following(2) == [2]
    state.append(5)
    state.append(1)
    assert state.following(2) == [2, 5]


def test_another_size_of_ngrams_makes_a_new_index() -> None:
    state = RowState.of([1, 2, 1, 3], 1)
    assert (state.following(2), state.following(1)) == ([], [1, 2, 1, 3])
    state.append(1)
    assert (state.following(2), state.following(3), state.counts()) == ([2, 3], [], {1: 2, 2: 1, 3: 1})


def test_a_prompt_cannot_be_rolled_back() -> None:
    state = RowState.of([1, 2, 3, 4], 2)
    for length in (1, 5):
        with pytest.raises(ValueError, match="a row of 4 tokens, 2 of them given"):
            state.rollback(length)
    state.rollback(2)
    assert len(state) == 2


def test_a_history_may_be_a_tensor_or_a_list() -> None:
    scores, tokens = noise(0), [1, 2, 1, 2, 1]
    for processor in (NoRepeatNgram(2), RepetitionPenalty(1.4)):
        one, *others = [processor.process(scores, given, 2) for given in (tokens, tuple(tokens), torch.tensor(tokens))]
        assert all(torch.equal(one, other) for other in others)
        assert not torch.equal(one, scores)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0, expected a number over 0"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty is nan"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size is -1"),
        ({"logit_bias": {3: float("nan")}}, "logit_bias"),
        ({"logit_bias": {-3: 1.0}}, "logit_bias"),
        ({"forced_eos_token_id": 2}, "max_length is None"),
    ],
)
def test_options_that_make_no_sense(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidField, match=named):
        LogitsOptions(**wrong)


@functools.cache
def byte_level() -> Tokenizer:
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return trained(made, tokenizers.trainers.BpeTrainer(vocab_size=400, show_progress=False))


@functools.cache
def metaspace() -> Tokenizer:
    made = tokenizers.Tokenizer(tokenizers.models.Unigram())
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    return trained(made, tokenizers.trainers.UnigramTrainer(vocab_size=60, show_progress=False, unk_token="<unk>"))


def trained(made: tokenizers.Tokenizer, trainer: Any) -> Tokenizer:
    made.train_from_iterator(
        ["the quick fox", "a lazy dog and the fox", "dog days are the best", "fox and dog"], trainer
    )
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=made))


@pytest.mark.parametrize("make", [byte_level, metaspace])
@pytest.mark.parametrize("word", ["fox", "dog days", "quickest"])
def test_bad_words_cannot_be_said_at_the_start_or_after_a_space(make: Callable[[], Tokenizer], word: str) -> None:
    tokenizer = make()
    pipeline = Pipeline(LogitsOptions(bad_words=bad_word_ids(tokenizer.target_ids, [word])))

    def sayable(text: str) -> bool:
        state = RowState.of([0], 1)
        for token in tokenizer.tokens(text, add_special_tokens=False).input_ids.tolist():
            if pipeline.apply(torch.zeros(tokenizer.vocab_size), state)[token] == NEVER:
                return False
            state.append(token)
        return True

    for text in (word, f" {word}", f"the {word}", f"a lazy dog and the {word} are"):
        assert not sayable(text), text
    assert sayable("the best and lazy")


def test_bad_words_are_listed_once() -> None:
    tokenizer = byte_level()
    listed = bad_word_ids(tokenizer.target_ids, ["fox", "", "fox"])
    assert len(listed) == len(set(listed)) == 2
