"""Stop strings over pieces of text, beside `str.find` in the whole text."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padserve.text.detokenize import Detokenizer
from padserve.text.stops import StopMatcher, StopStrings, WatchedText
from tests.text.test_detokenize import SEEDS, made, tokens_of
from tests.text.vocabularies import KINDS

PIECES = st.lists(st.text("ab ", max_size=4), max_size=12)
STOPS = st.lists(st.text("ab ", min_size=1, max_size=5), min_size=1, max_size=4)


def before(text: str, stops: list[str]) -> str:
    """The part before the stop string that starts first."""
    starts = [text.find(stop) for stop in stops if stop in text]
    return text[: min(starts)] if starts else text


def held(text: str, stops: list[str]) -> int:
    """The longest end of the text that begins a stop string."""
    return max(
        size for size in range(len(text) + 1) if any(stop.startswith(text[len(text) - size :]) for stop in stops)
    )


@settings(max_examples=500, deadline=None, derandomize=True)
@given(PIECES, STOPS)
def test_pieces_give_what_stands_before_the_first_stop_string(pieces: list[str], stops: list[str]) -> None:
    matcher, whole, given_out = StopMatcher(StopStrings(stops)), "", ""
    for piece in pieces:
        given_out += matcher.push(piece)
        whole += piece
        assert matcher.found == any(stop in whole for stop in stops)
        assert before(whole, stops).startswith(given_out)
        if not matcher.found:  # and no less than what is certain
            assert len(given_out) == len(whole) - held(whole, stops)
    assert given_out + matcher.finish() == before(whole, stops)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(PIECES, PIECES, STOPS)
def test_forks_go_their_own_ways(first: list[str], second: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(StopStrings(stops))
    start = matcher.push("ba a")
    fork = matcher.fork()
    for one, pieces in ((matcher, first), (fork, second)):
        rest = "".join([one.push(piece) for piece in pieces]) + one.finish()
        assert start + rest == before("ba a" + "".join(pieces), stops)


@pytest.mark.parametrize(
    ("pieces", "stops", "wanted"),
    [
        (["ABC", "DEF", "G", "HI", "J"], ["DEFGHIJ"], ["ABC", "", "", "", ""]),
        (["Hi", "\n", "User", ":"], ["\nUser:"], ["Hi", "", "", ""]),
        (["... four,", " five", ", six"], ["five"], ["... four,", " ", ""]),
        (["beta", " gam", "ma"], ["beta gamma"], ["", "", ""]),
        (["aab", "aac", "x"], ["aabaax"], ["", "aabaac", "x"]),
        (["xabc", "d"], ["abcd", "bc"], ["x", ""]),
    ],
)
def test_what_is_given_out_and_when(pieces: list[str], stops: list[str], wanted: list[str]) -> None:
    matcher = StopMatcher(StopStrings(stops))
    assert [matcher.push(piece) for piece in pieces] == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_stops_at_the_token_whose_text_completes_a_stop_string(kind: str) -> None:
    """As the whole text says, read anew at every token; nothing is looked for in the text before the first."""

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(SEEDS)
    def check(seed: int) -> None:
        rng, tokens = random.Random(seed), tokens_of(kind, seed)
        lead, tokens = tokens[: seed % 3], tokens[seed % 3 :][:40]
        whole = made(kind).decode([*lead, *tokens], skip_special_tokens=True)
        places = [rng.randrange(len(whole) + 1) for _ in range(2)]
        stops = [stop for stop in (whole[place : place + rng.randrange(1, 6)] for place in places) if stop] or ["zzz"]
        watched = WatchedText(made(kind), stops, lead)
        start = len(Detokenizer(made(kind)).push(*lead))
        for place, token in enumerate(tokens, 1):
            fork = watched.fork()
            watched.push(token)
            read = made(kind).decode([*lead, *tokens[:place]], skip_special_tokens=True)
            assert watched.stopped == any(stop in read[start:] for stop in stops)
            if watched.stopped:
                assert fork.tokens == place - 1
                return

    check()
