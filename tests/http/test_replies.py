"""Replies: the envelope, the headers, and problem objects."""

import asyncio
import logging
from typing import Any

import httpx
import pytest

from padserve import errors
from padserve.core import Usage

pytestmark = pytest.mark.asyncio


async def test_envelope(client: httpx.AsyncClient) -> None:
    reply = await client.post("/echo", json={"inputs": ["a", "b"]})
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.json() == {
        "model": "tiny",
        "results": [{"tokens": 3, "truncated": False, "text": text, "score": 0.5} for text in "ab"],
        "usage": {"input_tokens": 7},
    }


async def test_output_tokens_where_there_are_some(client: httpx.AsyncClient, service: Any) -> None:
    service.usage = Usage(input_tokens=7, output_tokens=0)
    reply = await client.post("/echo", json={"inputs": "a"})
    assert reply.json()["usage"] == {"input_tokens": 7, "output_tokens": 0}


async def test_timings_are_in_headers(client: httpx.AsyncClient) -> None:
    reply = await client.post("/echo", json={"inputs": "a"})
    assert reply.headers["server-timing"] == "tokenize;dur=1.00, queue;dur=2.00, run;dur=30.50, post;dur=4.00"
    assert (reply.headers["x-padserve-batch-tokens"], reply.headers["x-padserve-batch-size"]) == ("12", "4")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/echo"),
        ("GET", "/livez"),
        ("GET", "/nowhere"),
        ("GET", "/echo"),
        ("HEAD", "/models"),
        ("GET", "/docs"),
    ],
)
async def test_request_id_is_on_every_reply(client: httpx.AsyncClient, method: str, path: str) -> None:
    echoed = await client.request(method, path, headers={"X-Request-Id": "abc/ABC-1"})
    made = await client.request(method, path)
    again = await client.request(method, path)
    assert echoed.headers.get_list("x-request-id") == ["abc/ABC-1"]
    assert made.headers["x-request-id"] != again.headers["x-request-id"]


@pytest.mark.parametrize("given", [b"", b"x" * 129, "é".encode(), b"\x7f", b"tab\tbed"])
async def test_odd_request_ids_are_replaced(client: httpx.AsyncClient, given: bytes) -> None:
    reply = await client.get("/livez", headers=[(b"x-request-id", given)])
    assert reply.headers["x-request-id"].encode("latin-1") != given
    assert reply.headers["x-request-id"].isalnum()


async def test_longest_request_id(client: httpx.AsyncClient) -> None:
    reply = await client.get("/livez", headers={"X-Request-Id": "x" * 128})
    assert reply.headers["x-request-id"] == "x" * 128


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.UnknownModel("no"), 404, "unknown_model"),
        (errors.WrongTask("no"), 422, "wrong_task"),
        (errors.EmptyInputs("no"), 422, "empty_inputs"),
        (errors.EmptyInput("no"), 422, "empty_input"),
        (errors.NoMask("no"), 422, "no_mask"),
        (errors.TooManyTokens("no"), 413, "too_many_tokens"),
        (errors.NonfiniteOutput("no"), 500, "nonfinite_output"),
        (errors.DeadlineExceeded("no"), 504, "deadline_exceeded"),
    ],
)
async def test_errors_are_problem_objects(
    client: httpx.AsyncClient, service: Any, error: Exception, status: int, code: str
) -> None:
    service.outcome = error
    reply = await client.post("/echo", json={"inputs": "a"})
    assert reply.status_code == status
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json() == {
        "type": f"urn:padserve:error:{code}",
        "title": type(error).title,  # type: ignore[attr-defined]
        "status": status,
        "detail": "no",
        "code": code,
        "request_id": reply.headers["x-request-id"],
    }


@pytest.mark.parametrize(
    "error",
    [errors.QueueFull("full", 3), errors.Starting("soon", 3), errors.Draining("bye", 3), errors.EngineDown("down", 3)],
)
async def test_retry_after(client: httpx.AsyncClient, service: Any, error: Exception) -> None:
    service.outcome = error
    reply = await client.post("/echo", json={"inputs": "a"})
    assert reply.status_code in (429, 503)
    assert reply.headers["retry-after"] == "3"


async def test_extra_members(client: httpx.AsyncClient, service: Any) -> None:
    service.outcome = errors.InputTooLong(20, 16)
    problem = (await client.post("/echo", json={"inputs": "a"})).json()
    assert (problem["length"], problem["max_length"]) == (20, 16)


async def test_extra_members_do_not_hide_the_fixed_ones(client: httpx.AsyncClient, service: Any) -> None:
    service.outcome = errors.InvalidField("no", status=200, code="ok", odd={1, 2})
    reply = await client.post("/echo", json={"inputs": "a"})
    assert (reply.json()["status"], reply.json()["code"]) == (422, "invalid_field")


async def test_a_bug_is_500_with_its_traceback_only_in_the_log(
    client: httpx.AsyncClient, service: Any, caplog: pytest.LogCaptureFixture
) -> None:
    service.outcome = ZeroDivisionError("secret detail")
    reply = await client.post("/echo", json={"inputs": "a"})
    assert (reply.status_code, reply.json()["code"]) == (500, "internal_error")
    assert reply.headers["content-type"] == "application/problem+json"
    assert "secret" not in reply.text
    assert "ZeroDivisionError" not in reply.text
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert record.exc_info[1] is service.outcome
    assert vars(record)["request_id"] == reply.headers["x-request-id"]


async def test_unknown_route_names_the_nearest(client: httpx.AsyncClient) -> None:
    reply = await client.post("/ecko", json={})
    assert (reply.status_code, reply.json()["code"]) == (404, "not_found")
    assert reply.headers["content-type"] == "application/problem+json"
    assert "did you mean /echo" in reply.json()["detail"]
    assert "/models/{name}" in reply.json()["detail"]


@pytest.mark.parametrize("path", ["/a/b/c", "/models/", "/echo/x", "/%00", "/docs/none.js", "/..%2f"])
async def test_odd_paths_have_an_answer(client: httpx.AsyncClient, path: str) -> None:
    reply = await client.get(path)
    assert reply.status_code == (200 if path == "/models/" else 404)


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/echo", "OPTIONS, POST"),
        ("HEAD", "/echo", "OPTIONS, POST"),
        ("DELETE", "/echo", "OPTIONS, POST"),
        ("POST", "/models", "GET, HEAD, OPTIONS"),
        ("PUT", "/livez", "GET, HEAD, OPTIONS"),
        ("TRACE", "/models/tiny", "GET, HEAD, OPTIONS"),
    ],
)
async def test_wrong_method_is_405(client: httpx.AsyncClient, method: str, path: str, allow: str) -> None:
    reply = await client.request(method, path)
    assert (reply.status_code, reply.headers["allow"]) == (405, allow)
    if method != "HEAD":
        assert reply.json()["code"] == "method_not_allowed"
        assert reply.headers["content-type"] == "application/problem+json"


async def test_invalid_host_is_a_problem_object(client: httpx.AsyncClient) -> None:
    reply = await client.get("/livez", headers={"Host": "a b"})
    assert (reply.status_code, reply.json()["code"]) == (400, "bad_request")


@pytest.mark.parametrize("path", ["/livez", "/metrics", "/models", "/docs", "/openapi.json", "/", "/nowhere"])
async def test_head_is_get_without_a_body(client: httpx.AsyncClient, path: str) -> None:
    head, got = await client.head(path), await client.get(path)
    assert head.status_code == got.status_code
    assert head.content == b""
    assert head.headers["content-type"] == got.headers["content-type"]


async def test_two_clients_do_not_mix(client: httpx.AsyncClient, service: Any) -> None:
    """A failing request leaves the one beside it alone."""
    service.wait = asyncio.Event()
    first = asyncio.create_task(client.post("/echo", json={"inputs": "first"}))
    await service.started.wait()
    bad = await client.post("/echo", json={"inputs": 5})
    service.wait.set()
    assert bad.status_code == 422
    assert (await first).json()["results"][0]["text"] == "first"
