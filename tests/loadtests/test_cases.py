"""The load test finds replies that are not of their request."""

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest

from loadtests.cases import CASES, Body, differs, judged, singles

Results = list[dict[str, Any]]
RNG_SEED = 5


def tokens_of(text: str) -> int:
    return len(text.split()) + 2


def good_reply(route: str, body: Body) -> Results:
    """What a server might rightly answer, by the contract."""
    inputs = body.get("inputs")
    if route == "fill-mask":
        filled = [body["inputs"].replace("[MASK]", word) for word in ("red", "new", "old")]
        return [{"masks": [[{"score": 0.5 / (at + 1), "sequence": one} for at, one in enumerate(filled)]]}]
    if route == "classify":
        return [{"labels": [{"label": "en", "score": 0.9}], "tokens": tokens_of(one)} for one in inputs]
    if route == "zero-shot":
        return [{"labels": [{"label": one, "score": 0.3} for one in body["labels"]]}]
    if route == "token-classify":
        start = body["inputs"].index("name is ") + 8
        entity = {"start": start, "end": start + 4, "text": body["inputs"][start : start + 4], "score": 0.9}
        return [{"entities": [entity], "tokens": tokens_of(body["inputs"])}]
    if route == "embed":
        return [{"embedding": [0.6, 0.8], "tokens": tokens_of(one)} for one in inputs]
    if route == "rerank":
        found = [{"index": at, "score": float(at), "document": one} for at, one in enumerate(body["documents"])]
        return found[::-1]
    if route == "similarity":
        return [{"scores": [1.0 if one == inputs["source"] else 0.2 for one in inputs["sentences"]]}]
    words = body["inputs"].split()
    starts = [sum(len(word) + 1 for word in words[:at]) for at in range(len(words))]
    offsets = [[0, 0], *([start, start + len(word)] for start, word in zip(starts, words, strict=True)), [0, 0]]
    return [{"ids": list(range(len(offsets))), "tokens": ["t"] * len(offsets), "offsets": offsets}]


def bodies(route: str, count: int = 6) -> list[Body]:
    rng = random.Random(RNG_SEED)
    return [CASES[route].body(rng) for _ in range(count)]


@pytest.mark.parametrize("route", CASES)
def test_a_good_reply_is_good_and_unlike_anything_broken(route: str) -> None:
    case = CASES[route]
    for body in bodies(route):
        good = good_reply(route, body)
        assert judged(case, body, good) is None
        assert differs(case.numbers(body, good), case.numbers(body, good), 1e-6) is None
        assert judged(case, body, []) is not None
        assert judged(case, body, [*good, good[0]]) is not None
        assert judged(case, body, [{"error": {"code": "too_long", "message": ""}} for _ in good]) is not None


@pytest.mark.parametrize("route", ["fill-mask", "zero-shot", "token-classify", "rerank", "tokenize"])
def test_the_reply_to_another_request_is_found(route: str) -> None:
    first, *others = bodies(route)
    other = next(one for one in others if good_reply(route, one) != good_reply(route, first))
    assert judged(CASES[route], first, good_reply(route, other)) is not None


def spoil_order(results: Results) -> None:
    results.reverse()


def spoil_document(results: Results) -> None:
    results[0]["document"], results[1]["document"] = results[1]["document"], results[0]["document"]


def spoil_offsets(results: Results) -> None:
    results[0]["entities"][0]["end"] += 1


def spoil_norm(results: Results) -> None:
    results[0]["embedding"] = [0.6, float("nan")]


def spoil_tokens(results: Results) -> None:
    results[0]["tokens"] = 1


def spoil_self(results: Results) -> None:
    results[0]["scores"] = [0.2 for _ in results[0]["scores"]]


@pytest.mark.parametrize(
    ("route", "spoil"),
    [
        ("rerank", spoil_order),
        ("rerank", spoil_document),
        ("token-classify", spoil_offsets),
        ("embed", spoil_norm),
        ("embed", spoil_tokens),
        ("similarity", spoil_self),
    ],
)
def test_a_spoilt_reply_is_found(route: str, spoil: Callable[[Results], None]) -> None:
    body = bodies(route)[0]
    results = copy.deepcopy(good_reply(route, body))
    spoil(results)
    assert judged(CASES[route], body, results) is not None


def test_numbers_that_are_not_those_asked_alone_are_found() -> None:
    assert differs([1.0, 2.0], [1.0, 2.0005], 1e-3) is None
    assert differs([1.0, 2.0], [2.0, 1.0], 1e-3) is not None
    assert differs([1.0], [1.0, 2.0], 1e-3) is not None
    assert differs([float("nan")], [1.0], 1e-3) is not None


def test_singles_are_each_input_by_itself() -> None:
    assert list(singles({"inputs": ["a", "b"], "top_k": 1})) == [
        {"inputs": "a", "top_k": 1},
        {"inputs": "b", "top_k": 1},
    ]
    assert list(singles({"query": "q", "documents": ["a"]})) == [{"query": "q", "documents": ["a"]}]
