"""The parts of a stream beside the text of the whole output, for any tokens, stop strings and tokens before them."""

import random

import pytest
from hypothesis import given, settings

from padserve.core import Emitted, Generated, GenerationOptions
from padserve.tasks.generating import Ask, StreamedText, text_of
from padserve.text.stops import WatchedText
from tests.text.test_detokenize import SEEDS, made, tokens_of
from tests.text.vocabularies import KINDS


def chosen(kind: str, seed: int) -> tuple[Ask, list[int]]:
    """Stop strings that stand in the text, some over token boundaries, or begin there and go on otherwise."""
    rng, tokens = random.Random(seed), tokens_of(kind, seed)[:60]
    lead, tokens = tuple(tokens[: seed % 4]), tokens[seed % 4 :]
    whole = made(kind).decode(tokens, skip_special_tokens=True)
    stops = []
    for _ in range(seed % 3):
        place = rng.randrange(len(whole) + 1)
        stops.append(whole[place : place + rng.randrange(1, 9)] + rng.choice(["", "", "z", "\ufffd"]))
    stop_ids = frozenset(tokens[-1:] if seed % 5 == 0 else ())
    options = GenerationOptions(prompt=(0,), stop=tuple(filter(None, stops)), stop_ids=stop_ids)
    return Ask(options, 1, False, lead), tokens


def as_the_engine_stops(ask: Ask, kind: str, tokens: list[int]) -> list[int]:
    watched = WatchedText(made(kind), ask.options.stop, ask.lead)
    for place, token in enumerate(tokens, 1):
        watched.push(token)
        if token in ask.options.stop_ids or watched.stopped:
            return tokens[:place]
    return tokens


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_adds_up_to_the_text_and_never_takes_back(kind: str) -> None:
    @settings(max_examples=80, deadline=None, derandomize=True)
    @given(SEEDS)
    def check(seed: int) -> None:
        ask, tokens = chosen(kind, seed)
        tokens = as_the_engine_stops(ask, kind, tokens)
        output = Generated(tuple(tokens), "stop")
        text = text_of(output, ask, made(kind))
        streamed, parts = StreamedText(ask, made(kind)), ""
        for token in tokens:
            parts += streamed.push(Emitted(0, token))
            assert text.startswith(parts)
        assert parts + streamed.finish(output) == text

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_is_what_stands_before_the_first_stop_string(kind: str) -> None:
    for seed in range(0, 120, 4):  # nothing stands before the tokens
        ask, tokens = chosen(kind, seed)
        output = Generated(tuple(as_the_engine_stops(ask, kind, tokens)), "stop")
        kept = output.tokens[:-1] if output.tokens and output.tokens[-1] in ask.options.stop_ids else output.tokens
        whole = made(kind).decode(kept, skip_special_tokens=True)
        starts = [whole.find(stop) for stop in ask.options.stop if stop in whole]
        assert text_of(output, ask, made(kind)) == whole[: min(starts, default=len(whole))]
