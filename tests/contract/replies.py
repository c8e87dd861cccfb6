"""Assertions on replies: the envelope of section 1, problem+json, and scores within the tolerance."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import numpy as np
import pytest

from tests.contract.oracles import TOLERANCE


def describe(reply: httpx.Response) -> str:
    request = reply.request
    return f"{request.method} {request.url.path} {request.content[:600]!r} -> {reply.status_code} {reply.text[:900]}"


def envelope(reply: httpx.Response) -> dict[str, Any]:
    """The body of a successful reply, its envelope checked."""
    assert reply.status_code == 200, describe(reply)
    assert reply.headers["content-type"].split(";")[0] == "application/json", describe(reply)
    body: dict[str, Any] = reply.json()
    assert set(body) == {"model", "results", "usage"}, describe(reply)
    assert isinstance(body["results"], list)
    for entry in body["results"]:
        if "error" in entry:
            assert {"code", "message"} <= set(entry["error"]), describe(reply)
        else:
            # The one entry whose `tokens` are strings is /tokenize's.
            assert type(entry["tokens"]) is (list if "ids" in entry else int), describe(reply)
            assert type(entry["truncated"]) is bool, describe(reply)
    return body


def results(reply: httpx.Response, entries: int | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = envelope(reply)["results"]
    if entries is not None:
        assert len(found) == entries, describe(reply)
    return found


def served(reply: httpx.Response, entries: int | None = None) -> list[dict[str, Any]]:
    """The results of a reply in which no item failed."""
    found = results(reply, entries)
    assert not [entry for entry in found if "error" in entry], describe(reply)
    return found


def only(reply: httpx.Response) -> dict[str, Any]:
    return served(reply, 1)[0]


def problem(reply: httpx.Response, status: int, code: str | None = None) -> dict[str, Any]:
    """The problem object of an error reply, its shape checked."""
    assert reply.status_code == status, describe(reply)
    assert reply.headers["content-type"].split(";")[0] == "application/problem+json", describe(reply)
    body: dict[str, Any] = reply.json()
    assert {"type", "title", "status", "detail", "code"} <= set(body), describe(reply)
    assert body["status"] == status, describe(reply)
    assert all(body[member] for member in ("type", "title", "detail", "code")), describe(reply)
    assert re.fullmatch("[a-z][a-z_]*", body["code"]), describe(reply)
    assert reply.headers["x-request-id"], describe(reply)
    if code is not None:
        assert body["code"] == code, describe(reply)
    return body


def close(actual: Any, expected: Any, tolerance: float = TOLERANCE) -> None:
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=0, atol=tolerance)


def token_count(entry: Mapping[str, Any]) -> int:
    return len(entry["ids"]) if "ids" in entry else int(entry["tokens"])


def best_first(scores: Sequence[float]) -> None:
    assert list(scores) == sorted(scores, reverse=True)


def labels_close(entry: Mapping[str, Any], expected: Mapping[str, float], tolerance: float = TOLERANCE) -> None:
    """``entry["labels"]`` holds exactly the expected labels and scores, best first."""
    scores = {label["label"]: label["score"] for label in entry["labels"]}
    assert len(scores) == len(entry["labels"]), f"a label stands twice in {entry['labels']}"
    assert scores == pytest.approx(dict(expected), abs=tolerance)
    best_first([label["score"] for label in entry["labels"]])


def by_label(pairs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """A pipeline's list of labels and scores as a mapping."""
    return {pair["label"]: float(pair["score"]) for pair in pairs}
