"""What holds for every adapter: limits, keys, its own words for errors, one count under the task, cancellation."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from padserve import errors
from padserve.service.readiness import Readiness
from padserve.telemetry.metrics import Metrics
from tests.http.compat import ROUTES, Compat, TaskService, compat_app, compat_client, compat_metrics, message_of
from tests.http.conftest import MAX_BODY_BYTES
from tests.http.test_disconnect import eventually, serving

pytestmark = pytest.mark.asyncio
every_route = pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
JSON = {"Content-Type": "application/json"}
KEY = {"Authorization": "Bearer first-key"}
GETS = ("/v1/models", "/v1/models/org/bert", "/tei/info", "/v2", "/v2/models/topics", "/v2/models/topics/ready")
PUBLIC = ("/tei/health", "/v2/health/live", "/v2/health/ready")


@pytest.fixture
def service() -> TaskService:
    return TaskService()


@pytest.fixture
def metrics() -> Metrics:
    return compat_metrics()


@pytest_asyncio.fixture
async def client(service: TaskService, metrics: Metrics) -> AsyncIterator[httpx.AsyncClient]:
    async with compat_client(service, metrics) as client:
        yield client


@pytest_asyncio.fixture
async def keyed(service: TaskService, metrics: Metrics) -> AsyncIterator[httpx.AsyncClient]:
    async with compat_client(service, metrics, ("first-key",)) as client:
        yield client


def count(metrics: Metrics, **labels: str) -> float:
    samples = [
        s for family in metrics.registry.collect() for s in family.samples if s.name == "padserve_requests_total"
    ]
    return sum(s.value for s in samples if labels.items() <= s.labels.items())


@every_route
async def test_a_reply_has_the_native_headers(client: httpx.AsyncClient, route: Compat) -> None:
    reply = await client.post(route.path, json=route.many, headers={"X-Request-Id": "mine-1"})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"] == "mine-1"
    assert reply.headers["server-timing"] == "tokenize;dur=1.00, queue;dur=2.00, run;dur=30.50, post;dur=4.00"
    assert reply.headers["x-padserve-batch-size"] == "4"


@every_route
async def test_fields_that_nobody_knows_are_ignored(client: httpx.AsyncClient, route: Compat) -> None:
    reply = await client.post(route.path, json=route.body | {"user": "u", "x_extra": [1]})
    assert reply.status_code == 200, reply.text


@every_route
async def test_a_request_counts_once_under_its_task(client: httpx.AsyncClient, metrics: Metrics, route: Compat) -> None:
    await client.post(route.path, json=route.body)
    await client.post(route.path, json=route.wrong)
    await client.get(f"{route.prefix}/none")
    assert count(metrics, task=route.task, status="200") == 1
    assert count(metrics, task=route.task, status=str(route.invalid)) == 1
    assert count(metrics, task="other", status="404") == 1
    assert count(metrics) == 3


@every_route
async def test_a_wrong_field(client: httpx.AsyncClient, service: TaskService, route: Compat) -> None:
    reply = await client.post(route.path, json=route.wrong)
    assert reply.status_code == route.invalid
    assert message_of(reply)
    assert not service.requests


@every_route
@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"inputs": "\\ud83d"}', b"[" * 5000])
async def test_a_body_that_is_no_json(client: httpx.AsyncClient, route: Compat, body: bytes) -> None:
    reply = await client.post(route.path, content=body[:MAX_BODY_BYTES], headers=JSON)
    assert reply.status_code == 400
    assert message_of(reply)


@every_route
async def test_limits_and_media_types(client: httpx.AsyncClient, service: TaskService, route: Compat) -> None:
    large = await client.post(route.path, json=route.body | {"pad": "x" * MAX_BODY_BYTES})
    other = await client.post(route.path, content=b"a=b", headers={"Content-Type": "text/plain"})
    late = await client.post(route.path, json=route.body, headers={"X-Request-Timeout-Ms": "soon"})
    assert [large.status_code, other.status_code, late.status_code] == [413, 415, route.invalid]
    for reply in (large, other, late):
        assert message_of(reply)
    assert not service.requests


@every_route
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_other_methods(client: httpx.AsyncClient, route: Compat, method: str) -> None:
    reply = await client.request(method, route.path)
    assert (reply.status_code, reply.headers["allow"]) == (405, "OPTIONS, POST")
    assert "use" in message_of(reply)


@every_route
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.UnknownModel("no"), 404),
        (errors.TooManyTokens("no"), 413),
        (errors.QueueFull("no", 3), 429),
        (errors.Starting("no", 3), 503),
        (errors.Draining("no", 3), 503),
        (errors.EngineDown("no", 3), 503),
        (errors.DeadlineExceeded("no"), 504),
    ],
)
async def test_errors_of_the_service(
    client: httpx.AsyncClient, service: TaskService, route: Compat, error: Exception, status: int
) -> None:
    service.outcome = error
    reply = await client.post(route.path, json=route.body)
    assert reply.status_code == status
    assert message_of(reply) == "no"
    assert reply.headers.get("retry-after") == ("3" if status in (429, 503) else None)


@every_route
async def test_a_bug_tells_nothing(client: httpx.AsyncClient, service: TaskService, route: Compat) -> None:
    service.outcome = ZeroDivisionError("secret detail")
    reply = await client.post(route.path, json=route.body)
    assert reply.status_code == 500
    assert "secret" not in message_of(reply)


@every_route
async def test_an_input_that_fails_fails_the_request(
    client: httpx.AsyncClient, service: TaskService, route: Compat
) -> None:
    if route.many == route.body or route.task == "similarity":
        return  # one result for all: the service itself raises
    service.failing = errors.InputTooLong(20, 16)
    reply = await client.post(route.path, json=route.many)
    assert reply.status_code == route.invalid
    assert re.match("input 1: .*20 tokens.*16", message_of(reply))
    service.failing = errors.EngineDown("down")
    assert (await client.post(route.path, json=route.many)).status_code == 503


@every_route
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"X-API-Key": ""}])
async def test_keys(keyed: httpx.AsyncClient, service: TaskService, route: Compat, headers: dict[str, str]) -> None:
    refused = await keyed.post(route.path, json=route.body, headers=headers)
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert "key" in message_of(refused)
    assert not service.requests
    assert (await keyed.post(route.path, json=route.body, headers=KEY)).status_code == 200


@pytest.mark.parametrize("path", GETS)
async def test_keys_of_what_is_read(keyed: httpx.AsyncClient, path: str) -> None:
    refused = await keyed.get(path)
    assert refused.status_code == 401
    assert message_of(refused)
    assert (await keyed.get(path, headers=KEY)).status_code == 200


@pytest.mark.parametrize("path", PUBLIC)
async def test_health_needs_no_key(keyed: httpx.AsyncClient, service: TaskService, path: str) -> None:
    assert (await keyed.get(path)).status_code == 200
    assert (await keyed.head(path)).status_code == 200
    service.state = Readiness(ready=False, started=True, reasons=["worker 1 died"])
    reply = await keyed.get(path)
    assert reply.status_code == (200 if path.endswith("live") else 503)


async def test_health_is_not_in_the_log(client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "padserve.access")
    for path in PUBLIC:
        await client.get(path)
    assert not caplog.records


@pytest.mark.parametrize("path", ["/v1", "/v1/none", "/v1/embeddings/x", "/tei", "/tei/embed_sparse", "/v2/models"])
async def test_unknown_routes_below_a_prefix(client: httpx.AsyncClient, path: str) -> None:
    reply = await client.post(path, json={})
    assert reply.status_code == 404
    assert path in message_of(reply)


@pytest.mark.parametrize("path", ["/v10/models", "/teis", "/v2x", "/models/none"])
async def test_other_routes_keep_their_problem_objects(client: httpx.AsyncClient, path: str) -> None:
    reply = await client.get(path)
    assert reply.status_code == 404
    assert reply.headers["content-type"] == "application/problem+json"


@every_route
async def test_a_client_that_leaves_cancels_its_work(
    service: TaskService, metrics: Metrics, route: Compat, tmp_path: Path
) -> None:
    service.wait = asyncio.Event()
    body = json.dumps(route.body).encode()
    head = f"POST {route.path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    async with serving(compat_app(service, metrics), tmp_path) as uds:
        _, writer = await asyncio.open_unix_connection(uds)
        writer.write(head.encode() + b"\r\n\r\n" + body)
        await service.started.wait()
        writer.close()
        await eventually(lambda: count(metrics, task=route.task, status="499") == 1)
    assert (service.running, service.cancelled) == (0, 1)


@every_route
async def test_a_deadline_in_the_header(client: httpx.AsyncClient, service: TaskService, route: Compat) -> None:
    await client.post(route.path, json=route.body, headers={"X-Request-Timeout-Ms": "1500"})
    assert service.contexts[-1].timeout_ms == 1500


async def test_openapi_lists_every_route(client: httpx.AsyncClient) -> None:
    text = (await client.get("/openapi.json")).text
    document: dict[str, Any] = json.loads(text)
    assert set(re.findall(r'"#/components/schemas/(\w+)"', text)) <= document["components"]["schemas"].keys()
    for route in ROUTES:
        operation = document["paths"][route.path.replace("topics", "{name}")]["post"]
        assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        assert operation["responses"]["200"]["content"]["application/json"]["schema"]
        for status in (str(route.invalid), "401", "404", "413", "415", "429", "503"):
            schema = operation["responses"][status]["content"]["application/json"]["schema"]
            assert schema["$ref"].endswith("Error"), schema
    for path in (*GETS, *PUBLIC):
        template = re.sub("org/bert|topics", "{name}", path)
        operation = document["paths"][template]["get"]
        assert ("parameters" in operation) == ("{name}" in template)
        assert ("security" in operation) == (path in PUBLIC)


async def test_root_lists_the_routes(client: httpx.AsyncClient) -> None:
    routes = (await client.get("/")).json()["routes"]
    assert routes["/v1/embeddings"] == ["POST"]
    assert "/v2/models/{name}/infer" in routes
    assert not [path for path in routes if ":" in path]
