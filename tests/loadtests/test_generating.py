"""Which tokens pass for the model's, and what the files of the random models hold."""

import pytest

from loadtests.generating import Beams, Greedy, passages, tokens_fault
from loadtests.generators import RECIPES, vocabulary
from loadtests.mixed import LONG_WORDS, long_prompts
from loadtests.texts import WORDS

TOLERANCE = 0.02
PLACES = ({7: -0.1, 8: -3.0}, {3: -1.0, 4: -1.01, 5: -2.0}, {9: -0.5, 1: -0.7})
ALONE = Greedy((7, 3, 9), PLACES, 3)
SEARCHED = Beams(((1, 2, 3), (1, 2, 4), (5, 2, 4)), (-1.0, -1.01, -1.5))


@pytest.mark.parametrize("found", [[7, 3, 9], [7, 4, 99], [7, 4, 9]])
def test_the_same_tokens_pass_and_so_do_others_from_one_as_likely(found: list[int]) -> None:
    assert tokens_fault(found, ALONE, TOLERANCE) is None


@pytest.mark.parametrize("found", [[8, 3, 9], [7, 5, 9], [7, 3, 1], [7, 3, 2], [7, 3], [7, 3, 9, 9]])
def test_less_likely_tokens_and_another_number_of_them_are_faults(found: list[int]) -> None:
    assert tokens_fault(found, ALONE, TOLERANCE) is not None


def test_nothing_is_compared_from_the_first_end_token_on() -> None:
    assert tokens_fault([7, 5, 1], Greedy((7, 3, 9), PLACES, 1), TOLERANCE) is None
    assert tokens_fault([8, 3, 9], Greedy((7, 3, 9), PLACES, 1), TOLERANCE) is not None


@pytest.mark.parametrize(("found", "passes"), [((1, 2, 3), True), ((1, 2, 4), True), ((5, 2, 4), False)])
def test_the_best_output_of_a_search_passes_and_so_does_its_equal(found: tuple[int, ...], passes: bool) -> None:
    assert (tokens_fault(found, SEARCHED, TOLERANCE) is None) == passes


def test_an_output_that_the_search_did_not_end_with_is_a_fault() -> None:
    assert (
        tokens_fault([1, 9, 9], SEARCHED, TOLERANCE) == "none of the search's outputs, the best one's from token 1 on"
    )


@pytest.mark.parametrize("family", RECIPES)
def test_a_vocabulary_has_the_special_tokens_where_the_configuration_says(family: str) -> None:
    tokens, config = vocabulary(RECIPES[family]), RECIPES[family].config
    assert len(tokens) == len(set(tokens)) == config["vocab_size"]
    assert tokens[config["pad_token_id"]] == "<pad>"
    assert tokens[config["eos_token_id"]] == "</s>"
    assert set(WORDS) < set(tokens)


def test_passages_ask_for_as_many_tokens_as_told() -> None:
    assert {(one.new_tokens, one.beams) for one in passages("short", 5, 8, beams=4)} == {(8, 4)}


def test_long_prompts_are_long_and_differ() -> None:
    found = long_prompts(5)
    assert {len(one.text.split()) for one in found} == {LONG_WORDS}
    assert len({one.text for one in found}) == 5
