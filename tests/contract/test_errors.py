"""Errors of section 1: problem+json with the right status and code, for bodies, headers, methods and routes."""

import json
from typing import Any

import httpx
import pytest

from tests.contract.replies import problem, served
from tests.contract.routes import CLASSIFY, ROUTES, Route, name_of

JSON = {"content-type": "application/json"}
every_route = pytest.mark.parametrize("route", ROUTES, ids=name_of)


@every_route
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"inputs": "a"', b"inputs=a", b'{"inputs": NaN}', b"{'inputs': 'a'}", b'{"inputs": "a"} x', b"\x00"],
)
def test_malformed_json(client: httpx.Client, route: Route, body: bytes) -> None:
    problem(client.post(route.path, content=body, headers=JSON), 400, "malformed_json")


@every_route
@pytest.mark.parametrize("body", [b"[]", b"null", b'"text"', b"5", b"true"])
def test_a_body_that_is_not_an_object(client: httpx.Client, route: Route, body: bytes) -> None:
    problem(client.post(route.path, content=body, headers=JSON), 422, "invalid_field")


@every_route
@pytest.mark.parametrize(
    "text",
    [rb"\ud83d", rb"a \ud83d b", rb"\udc00", rb"\ud83d\ud83d", rb"\ude00\ud83d", b"\xff", b"a\xc3", b"\xed\xa0\x80"],
)
def test_text_that_is_not_unicode(client: httpx.Client, route: Route, text: bytes) -> None:
    marker = "R2D2"
    body = json.dumps(route.body(_with_text(route.items[0], marker))).encode().replace(marker.encode(), text)
    details = problem(client.post(route.path, content=body, headers=JSON), 400, "bad_encoding")
    assert "truncated" not in details["detail"].lower(), details


def _with_text(item: Any, text: str) -> Any:
    return {"source": text, "sentences": ["a"]} if isinstance(item, dict) else text


@pytest.mark.parametrize("body", [b'{"model": "bert-cls", "inputs": "a \\ud83d"}', b'{"inputs": "\\ud83d'])
def test_a_lone_surrogate_as_the_last_character(client: httpx.Client, body: bytes) -> None:
    problem(client.post("/classify", content=body, headers=JSON), 400)


def test_a_surrogate_pair_is_one_character(client: httpx.Client) -> None:
    body = b'{"model": "bert-cls", "inputs": "a \\ud83d\\ude00 b"}'
    served(client.post("/classify", content=body, headers=JSON), 1)


def test_the_last_of_a_repeated_key_counts(client: httpx.Client) -> None:
    body = b'{"model": "bert-cls", "inputs": ["a", "b"], "inputs": "winter"}'
    served(client.post("/classify", content=body, headers=JSON), 1)


def test_a_byte_order_mark_is_skipped(client: httpx.Client) -> None:
    body = b'\xef\xbb\xbf{"model": "bert-cls", "inputs": "winter"}'
    served(client.post("/classify", content=body, headers=JSON), 1)


@every_route
def test_other_media_types(client: httpx.Client, route: Route) -> None:
    for media_type in ("text/plain", "application/x-www-form-urlencoded", "application/msgpack", "multipart/form-data"):
        reply = client.post(route.path, content=json.dumps(route.one), headers={"content-type": media_type})
        problem(reply, 415, "unsupported_media_type")


def test_json_media_type_with_a_charset(client: httpx.Client) -> None:
    headers = {"content-type": "application/json; charset=utf-8"}
    served(client.post("/classify", content=json.dumps(CLASSIFY.one), headers=headers), 1)


@every_route
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
def test_other_methods(client: httpx.Client, route: Route, method: str) -> None:
    reply = client.request(method, route.path)
    problem(reply, 405, "method_not_allowed")
    assert "POST" in reply.headers["allow"]


@pytest.mark.parametrize("path", ["/clasify", "/classify/more", "/livez/more", "/v9/classify"])
def test_unknown_routes(client: httpx.Client, path: str) -> None:
    problem(client.get(path), 404)
    problem(client.post(path, json=CLASSIFY.one), 404)


def test_an_unknown_model_page(client: httpx.Client) -> None:
    problem(client.get("/models/none-such"), 404, "unknown_model")


@every_route
def test_a_body_over_the_limit(client: httpx.Client, route: Route) -> None:
    body = json.dumps(route.one | {"model": "x" * 2_000_001})
    problem(client.post(route.path, content=body, headers=JSON), 413, "body_too_large")


def test_a_chunked_body_over_the_limit(client: httpx.Client) -> None:
    def chunks() -> Any:
        yield b'{"model": "bert-cls", "inputs": "'
        for _ in range(300):
            yield b"x" * 10_000
        yield b'"}'

    problem(client.post("/classify", content=chunks(), headers=JSON), 413, "body_too_large")


@pytest.mark.parametrize("value", ["soon", "5.0", "-1", ""])
def test_a_wrong_timeout_header(client: httpx.Client, value: str) -> None:
    reply = client.post("/classify", json=CLASSIFY.one, headers={"X-Request-Timeout-Ms": value})
    problem(reply, 422, "invalid_field")


def test_deep_nesting_is_refused(client: httpx.Client) -> None:
    body = b'{"inputs": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    reply = client.post("/classify", content=body, headers=JSON)
    assert reply.status_code in (400, 422)
    problem(reply, reply.status_code)


def test_errors_carry_the_request_id(client: httpx.Client) -> None:
    for path, status in (("/none-such", 404), ("/classify", 400)):
        reply = client.post(path, content=b"{", headers=JSON | {"X-Request-Id": "bad-7"})
        problem(reply, status)
        assert reply.headers["x-request-id"] == "bad-7"


@pytest.mark.parametrize("value", ["a" * 5_000, "tab\there", "sp ace", "ü".encode("latin-1")])
def test_a_strange_request_id_never_breaks_the_reply(client: httpx.Client, value: str | bytes) -> None:
    headers = [(b"X-Request-Id", value.encode() if isinstance(value, str) else value)]
    reply = client.post("/classify", json=CLASSIFY.one, headers=headers)
    assert reply.status_code in (200, 400, 431)
    if reply.status_code == 200:
        assert reply.headers["x-request-id"]
