"""Looking drafts up: against the longest match that a plain search finds, and what bad guesses cost."""

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padserve.generate.speculate.ngram import BREAK, LONGEST, SHORTEST, NgramDrafter, NgramIndex


def longest_match(text: list[int]) -> tuple[int, int]:
    """(end, length) by comparing every place with the text's end; the latest of equals."""
    best = (0, 0)
    for end in range(1, len(text)):
        length = 0
        while length < min(LONGEST, end) and text[end - 1 - length] == text[-1 - length]:
            length += 1
        if length >= SHORTEST and length >= best[1]:
            best = (end, length)
    return best


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=60), st.integers(1, 7))
def test_the_longest_match_is_found(text: list[int], chunk: int) -> None:
    index = NgramIndex()
    for start in range(0, len(text), chunk):
        index.extend(text[start : start + chunk])
        assert index.find() == longest_match(text[: start + chunk])


def test_the_draft_is_what_came_after() -> None:
    assert NgramDrafter(3).propose([5, 6, 7, 8, 9, 1, 5, 6], 10) == [7, 8, 9]
    assert NgramDrafter(3).propose([5, 6, 7, 8, 9, 1, 5, 6], 2) == [7, 8]
    assert NgramDrafter(3).propose([5, 6, 7, 5, 6, 8, 5, 6], 1) == [8]
    assert NgramDrafter(3).propose([1, 5, 6, 7, 5, 6, 8, 1, 5, 6], 1) == [7], "the longer match wins over the latest"
    assert NgramDrafter(3).propose([5, 6, 7], 5) == []
    assert NgramDrafter(3).propose([], 5) == []


def test_a_text_that_goes_round_is_foreseen_beyond_its_end() -> None:
    assert NgramDrafter(8).propose([9, 1, 2, 3, 1, 2, 3, 1, 2, 3], 7) == [1, 2, 3, 1, 2, 3, 1]
    assert NgramDrafter(8).propose([4, 4, 4], 3) == [4, 4, 4]


def test_a_source_is_looked_up_to_its_end() -> None:
    assert NgramDrafter(8, [5, 6, 7, 8]).propose([2, 5, 6], 8) == [7, 8]
    assert NgramDrafter(8, [5, 6]).propose([2, 5, 6], 8) == []
    assert NgramDrafter(8, [5, 2]).propose([2, 5, 2], 8) == [], "the break is guessed by nobody"
    assert BREAK < 0


def costs(text: list[int], most: int = 8) -> tuple[int, int, int]:
    """(drafted, accepted, steps) where the output is this text."""
    drafter, place, drafted, accepted, steps = NgramDrafter(most), 1, 0, 0, 0
    while place < len(text):
        draft = drafter.propose(text[:place], most)
        right = 0
        while right < len(draft) and place + right < len(text) and draft[right] == text[place + right]:
            right += 1
        if draft:
            drafter.learn(len(draft), right)
        place, drafted, accepted, steps = place + right + 1, drafted + len(draft), accepted + right, steps + 1
    return drafted, accepted, steps


def test_a_text_that_repeats_takes_few_steps() -> None:
    words = [random.Random(1).randrange(1000) for _ in range(100)]
    drafted, accepted, steps = costs(words * 4)
    assert steps < 100 + 300 / 6
    assert accepted > 0.9 * drafted


@pytest.mark.parametrize("kinds", [3, 8, 30, 1000])
def test_a_text_that_does_not_repeat_costs_little(kinds: int) -> None:
    """Random tokens, of so few kinds that matches are plenty and mean nothing."""
    rng = random.Random(2)
    drafted, accepted, steps = costs([rng.randrange(kinds) for _ in range(1000)])
    assert drafted - accepted < 0.3 * steps


def test_guesses_that_always_fail_come_to_an_end() -> None:
    """The output is never what is guessed: ever longer matches are asked for, and there are fewer of these."""
    rng, drafter, text, wasted = random.Random(5), NgramDrafter(8), [1, 2], []
    for _ in range(2000):
        draft = drafter.propose(text, 8)
        if draft:
            drafter.learn(len(draft), 0)
        wasted.append(len(draft))
        text.append((draft[0] + 1) % 3 if draft else rng.randrange(3))
    assert 0 < sum(wasted) < 40
    assert sum(wasted[1000:]) < 10


def test_a_long_text_takes_no_longer_a_token() -> None:
    for text in ([7] * 30_000, [random.Random(3).randrange(50) for _ in range(30_000)]):
        drafter, tokens, started = NgramDrafter(8), [], time.perf_counter()
        for token in text:
            tokens.append(token)
            drafter.propose(tokens, 8)
        assert time.perf_counter() - started < 10, "30,000 squared would take minutes"
