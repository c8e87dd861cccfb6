"""Requests of each task, and which answers pass for the model's."""

import pytest

from loadtests.measuring import CHECKED, to_check
from loadtests.tasks import DOCUMENTS, MASK, TASKS, Task, best_fault, masked, order_fault, rankings, vector_fault
from loadtests.texts import MIXES, texts

TOLERANCE = 0.02


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
@pytest.mark.parametrize("mix", MIXES)
def test_a_mix_gives_as_many_requests_as_asked_and_always_the_same(task: Task, mix: str) -> None:
    assert len(task.asked(mix, 30)) == 30
    assert task.asked(mix, 30) == task.asked(mix, 30)


def test_a_masked_text_has_one_mask_in_place_of_a_word() -> None:
    for plain, one in zip(texts("lognormal", 50), masked("lognormal", 50), strict=True):
        assert one.split().count(MASK) == 1
        assert len(one.split()) == len(plain.split())


def test_rankings_are_short_queries_with_documents_of_the_mix() -> None:
    found = rankings("equal", 20)
    assert {len(one.documents) for one in found} == {DOCUMENTS}
    assert {len(document.split()) for one in found for document in one.documents} == {32}
    assert all(2 <= len(one.query.split()) <= 8 for one in found)
    assert len({one.documents for one in found}) == 20


def test_the_shortest_and_the_longest_request_are_among_those_checked() -> None:
    given = texts("lognormal", 200)
    checked = to_check(given)
    assert len(checked) == CHECKED
    assert {min(given, key=len), max(given, key=len)} <= set(checked)


def test_a_vector_is_judged_by_its_cosine() -> None:
    assert vector_fault([2.0, 0.0], [1.0, 0.0], TOLERANCE) is None
    assert vector_fault([1.0, 0.01], [1.0, 0.0], TOLERANCE) is None
    assert vector_fault([1.0, 0.1], [1.0, 0.0], TOLERANCE) is not None
    assert vector_fault([float("nan"), 0.0], [1.0, 0.0], TOLERANCE) is not None
    assert vector_fault([1.0], [1.0, 0.0], TOLERANCE) is not None
    assert vector_fault([0.0, 0.0], [1.0, 0.0], TOLERANCE) is not None


ALONE = {"a": 0.5, "b": 0.49, "c": 0.01}


@pytest.mark.parametrize("found", [("a", 0.5), ("a", 0.515), ("b", 0.49)])
def test_the_best_one_passes_and_so_does_its_equal(found: tuple[str, float]) -> None:
    assert best_fault(found, ALONE, TOLERANCE) is None


@pytest.mark.parametrize("found", [("c", 0.5), ("a", 0.53), ("d", 0.5), ("a", float("nan"))])
def test_another_one_and_another_score_are_faults(found: tuple[str, float]) -> None:
    assert best_fault(found, ALONE, TOLERANCE) is not None


def test_among_many_small_likelihoods_equal_means_relative_to_the_best() -> None:
    alone = {1: 0.010, 2: 0.0099, 3: 0.009}
    assert best_fault((2, 0.0099), alone, TOLERANCE, relative=True) is None
    assert best_fault((3, 0.009), alone, TOLERANCE, relative=True) is not None


def test_the_order_of_documents_counts_where_their_scores_differ() -> None:
    alone = [0.1, 5.0, 3.0, 3.01]
    assert order_fault([1, 3, 2, 0], alone, TOLERANCE) is None
    assert order_fault([1, 2, 3, 0], alone, TOLERANCE) is None
    assert order_fault([3, 1, 2, 0], alone, TOLERANCE) is not None
    assert order_fault([1, 0, 3, 2], alone, TOLERANCE) is not None


@pytest.mark.parametrize("found", [[1, 3, 2], [1, 3, 2, 2], [1, 3, 2, 4], []])
def test_an_order_names_each_document_once(found: list[int]) -> None:
    assert order_fault(found, [0.1, 5.0, 3.0, 3.01], TOLERANCE) is not None


def test_small_steps_do_not_add_up_to_another_order() -> None:
    alone = [0.0, 0.015, 0.03, 1.0]
    assert order_fault([3, 0, 1, 2], alone, TOLERANCE) is not None
