"""Length mixes: the same for a seed, and of the lengths that they promise."""

import statistics

import pytest

from loadtests.texts import MIXES, WORDS, texts


def lengths(mix: str, count: int = 4000) -> list[int]:
    return [len(text.split()) for text in texts(mix, count, seed=3)]


@pytest.mark.parametrize("mix", MIXES)
def test_a_seed_gives_the_same_texts_and_another_seed_others(mix: str) -> None:
    assert texts(mix, 20, seed=1) == texts(mix, 20, seed=1)
    assert texts(mix, 20, seed=1) != texts(mix, 20, seed=2)


@pytest.mark.parametrize(("mix", "least", "most"), [("short", 2, 8), ("long", 80, 180), ("equal", 32, 32)])
def test_lengths_reach_both_bounds(mix: str, least: int, most: int) -> None:
    seen = lengths(mix)
    assert (min(seen), max(seen)) == (least, most)


def test_lognormal_has_its_median_its_spread_and_its_cap() -> None:
    seen = lengths("lognormal")
    lower, median, upper = statistics.quantiles(seen, n=4)
    assert median == pytest.approx(27, abs=1.5)
    # Quartiles of a lognormal: median x exp(-+0.6745 sigma), sigma 0.9.
    assert lower == pytest.approx(14.7, abs=1.2)
    assert upper == pytest.approx(49.5, abs=3)
    assert min(seen) >= 1
    assert max(seen) == 180


def test_bimodal_has_nothing_between_its_humps() -> None:
    seen = lengths("bimodal")
    assert not [length for length in seen if 8 < length < 80]
    assert sum(length <= 8 for length in seen) / len(seen) == pytest.approx(0.8, abs=0.03)


def test_no_word_is_listed_twice() -> None:
    assert len(WORDS) == len(set(WORDS))
