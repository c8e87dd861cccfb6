"""Bodies and headers of requests: what is taken, and what is refused with which words."""

import asyncio
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.asyncio
JSON = {"Content-Type": "application/json"}


async def post(client: httpx.AsyncClient, body: bytes, **headers: str) -> httpx.Response:
    return await client.post("/echo", content=body, headers=JSON | headers)


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs":"a"}',
        b'\xef\xbb\xbf{"inputs":"a"}',
        b'{"inputs":"b","inputs":"a"}',
        b' \n{"inputs":"\\u0061", "model":null, "top_k":100}\n',
    ],
    ids=["plain", "byte order mark", "duplicate key, last wins", "spaces"],
)
async def test_good_bodies(client: httpx.AsyncClient, body: bytes) -> None:
    reply = await post(client, body)
    assert reply.status_code == 200
    assert [entry["text"] for entry in reply.json()["results"]] == ["a"]


@pytest.mark.parametrize("text", ["\U0001f600", "\\\\ud83d", "日本", "\x7f\u2028"])
async def test_text_arrives_unchanged(client: httpx.AsyncClient, text: str) -> None:
    reply = await client.post("/echo", json={"inputs": [text]})
    assert reply.json()["results"][0]["text"] == text


async def test_surrogate_pair_is_a_character(client: httpx.AsyncClient) -> None:
    reply = await post(client, b'{"inputs":"\\ud83d\\ude00"}')
    assert reply.json()["results"][0]["text"] == "\U0001f600"


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"", "malformed_json", "empty"),
        (b"  ", "malformed_json", "empty"),
        (b"{", "malformed_json", "truncated"),
        (b'{"inputs":"a"} x', "malformed_json", "trailing"),
        (b"{'inputs':'a'}", "malformed_json", "strings"),
        (b'{"inputs":"a","top_k":NaN}', "malformed_json", "invalid character"),
        (b'{"inputs":"a","top_k":Infinity}', "malformed_json", "invalid character"),
        (b'{"top_k":"5","inputs":NaN}', "malformed_json", "invalid character"),
        (b'{"inputs":"a\x01"}', "malformed_json", "invalid character"),
        (b'{"inputs":"\\uzzzz"}', "malformed_json", "escape"),
        (b"[" * 4000, "malformed_json", "nested"),
        (b'{"inputs":' + b"[" * 4000, "malformed_json", "nested"),
        (b'{"inputs":"\\ud83d"}', "bad_encoding", "lone surrogate"),
        (b'{"inputs":"\\ud83d, more text"}', "bad_encoding", "lone surrogate"),
        (b'{"inputs":"\\ude00 low half"}', "bad_encoding", "lone surrogate"),
        (b'{"inputs":"\\ud83d\\u0041"}', "bad_encoding", "lone surrogate"),
        (b'{"inputs":"\\ud83d\\ude00\\ud83d"}', "bad_encoding", "lone surrogate"),
        (b'{"\\ud800":1}', "bad_encoding", "lone surrogate"),
        (b'{"inputs":"\xff"}', "bad_encoding", "UTF-8"),
        (b'{"inputs":"\xed\xa0\xbd"}', "bad_encoding", "UTF-8"),
        ('{"inputs":"a"}'.encode("utf-16"), "bad_encoding", "UTF-8"),
    ],
)
async def test_malformed_bodies_are_400(client: httpx.AsyncClient, body: bytes, code: str, words: str) -> None:
    reply = await post(client, body)
    assert (reply.status_code, reply.json()["code"]) == (400, code)
    assert words in reply.json()["detail"]


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({}, "inputs", "required"),
        ({"inputs": 5}, "inputs", "got `int`"),
        ({"inputs": ["a", "b", "c", 3]}, "inputs[3]", "got `int`"),
        ({"inputs": [{"text": "a"}, {"text": 3}]}, "inputs[1].text", "Expected `str`"),
        ({"inputs": [{"text": "a", "pair": "b"}]}, "inputs[0].pair", "no such field"),
        ({"inputs": {}}, "inputs.text", "required"),
        ({"inputs": "a", "top_k": "5"}, "top_k", "got `str`"),
        ({"inputs": "a", "top_k": 5.0}, "top_k", "got `float`"),
        ({"inputs": "a", "top_k": True}, "top_k", "got `bool`"),
        ({"inputs": "a", "top_k": 0}, "top_k", ">= 1"),
        ({"inputs": "a", "top_k": 10**25}, "top_k", "<= 100"),
        ({"inputs": "a", "topk": 5}, "topk", "did you mean 'top_k'"),
        ({"inputs": "a", "zzz": 5}, "zzz", "inputs, mode, model, priority"),
        ({"inputs": "a", "mode": "silent"}, "mode", "'loud', 'plain'"),
        ({"inputs": "a", "truncation_side": "up"}, "truncation_side", "'left', 'right'"),
        ({"inputs": "a", "truncate": 1}, "truncate", "got `int`"),
        ([], "", "Expected `object`"),
        ("text", "", "Expected `object`"),
    ],
)
async def test_wrong_fields_are_422_and_named(client: httpx.AsyncClient, body: Any, field: str, words: str) -> None:
    reply = await client.post("/echo", json=body)
    assert (reply.status_code, reply.json()["code"], reply.json()["field"]) == (422, "invalid_field", field)
    assert words in reply.json()["detail"]


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "Application/JSON; charset=UTF-8",
        'application/json;charset="utf-8"',
        "application/x+json",
        "",
    ],
)
async def test_json_media_types(client: httpx.AsyncClient, content_type: str) -> None:
    reply = await post(client, b'{"inputs":"a"}', **{"Content-Type": content_type})
    assert reply.status_code == 200


async def test_no_content_type_is_json(client: httpx.AsyncClient) -> None:
    request = client.build_request("POST", "/echo", content=b'{"inputs":"a"}')
    assert "content-type" not in request.headers
    assert (await client.send(request)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": "application/json; charset=latin-1"},
        {"Content-Encoding": "gzip"},
    ],
)
async def test_other_media_types_are_415(client: httpx.AsyncClient, headers: dict[str, str]) -> None:
    reply = await post(client, b'{"inputs":"a"}', **headers)
    assert (reply.status_code, reply.json()["code"]) == (415, "unsupported_media_type")


async def test_body_at_the_limit_is_served_and_one_byte_more_is_413(client: httpx.AsyncClient) -> None:
    frame = len('{"inputs":""}')
    fits = await post(client, b'{"inputs":"%s"}' % (b"a" * (4096 - frame)))
    too_large = await post(client, b'{"inputs":"%s"}' % (b"a" * (4097 - frame)))
    assert (fits.status_code, too_large.status_code) == (200, 413)
    assert too_large.json()["code"] == "body_too_large"
    assert too_large.json()["max_body_bytes"] == 4096


async def test_large_body_without_a_length_is_413(client: httpx.AsyncClient) -> None:
    sent = 0

    async def chunks() -> Any:
        nonlocal sent
        for _ in range(1000):
            sent += 1
            yield b"a" * 100

    reply = await client.post("/echo", content=chunks(), headers=JSON)
    assert (reply.status_code, reply.json()["code"]) == (413, "body_too_large")
    assert sent < 60, "the rest of the body was read"


async def test_body_in_chunks(client: httpx.AsyncClient) -> None:
    async def chunks() -> Any:
        for part in (b'{"inp', b"", b'uts":"\xe6\x97', b'\xa5"}'):
            yield part

    reply = await client.post("/echo", content=chunks(), headers=JSON)
    assert reply.json()["results"][0]["text"] == "日"


async def test_timeout_header_reaches_the_service(client: httpx.AsyncClient, service: Any) -> None:
    await post(client, b'{"inputs":"a"}', **{"X-Request-Timeout-Ms": "250"})
    await post(client, b'{"inputs":"a"}')
    assert [context.timeout_ms for context in service.contexts] == [250, None]


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "5s", "+5", "", "99999999999", "٣", "1e3", "1_000"])
async def test_wrong_timeout_header_is_named(client: httpx.AsyncClient, service: Any, value: str) -> None:
    headers = [(b"content-type", b"application/json"), (b"x-request-timeout-ms", value.encode())]
    reply = await client.post("/echo", content=b'{"inputs":"a"}', headers=headers)
    assert (reply.status_code, reply.json()["field"]) == (422, "X-Request-Timeout-Ms")
    assert not service.requests


async def test_requests_run_at_once(client: httpx.AsyncClient, service: Any) -> None:
    service.wait = asyncio.Event()
    pending = [asyncio.create_task(post(client, b'{"inputs":"%d"}' % number)) for number in range(20)]
    while service.running < 20:
        await asyncio.sleep(0)
    service.wait.set()
    replies = await asyncio.gather(*pending)
    assert [reply.json()["results"][0]["text"] for reply in replies] == [str(number) for number in range(20)]
    assert service.peak == 20
