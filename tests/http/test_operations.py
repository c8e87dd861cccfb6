"""Health, metrics, models, documentation."""

import logging
import re
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
from litestar import Litestar
from prometheus_client.parser import text_string_to_metric_families

from padserve import __version__
from padserve.service.readiness import Readiness
from padserve.telemetry.metrics import Metrics

pytestmark = pytest.mark.asyncio


async def test_lifespan_is_entered_and_left(make_app: Callable[..., Litestar], service: Any) -> None:
    async with make_app().lifespan():
        assert service.alive
    assert not service.alive


async def test_healthy(client: httpx.AsyncClient) -> None:
    for path, status in (("/livez", "ok"), ("/readyz", "ready"), ("/startupz", "started")):
        reply = await client.get(path)
        assert (reply.status_code, reply.json()) == (200, {"status": status})


async def test_not_ready_says_why(client: httpx.AsyncClient, service: Any) -> None:
    service.state = Readiness(ready=False, started=True, reasons=["worker 1 died", "draining"])
    ready, started, live = [await client.get(path) for path in ("/readyz", "/startupz", "/livez")]
    assert (ready.status_code, started.status_code, live.status_code) == (503, 200, 200)
    assert ready.headers["content-type"] == "application/problem+json"
    assert int(ready.headers["retry-after"]) >= 1
    assert ready.json()["reasons"] == ["worker 1 died", "draining"]
    assert "worker 1 died" in ready.json()["detail"]


async def test_not_started(client: httpx.AsyncClient, service: Any) -> None:
    service.state = Readiness(ready=False, started=False, reasons=["loading tiny"])
    reply = await client.get("/startupz")
    assert (reply.status_code, reply.json()["code"], reply.json()["reasons"]) == (503, "starting", ["loading tiny"])


async def test_metrics_are_plain_prometheus_text(client: httpx.AsyncClient) -> None:
    await client.post("/echo", json={"inputs": "a"})
    reply = await client.get("/metrics", headers={"Accept-Encoding": "gzip, br, deflate"})
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "content-encoding" not in reply.headers
    names = {family.name for family in text_string_to_metric_families(reply.text)}
    assert {"padserve_requests", "padserve_request_duration_seconds", "process_resident_memory_bytes"} <= names


async def test_each_request_is_counted_once(client: httpx.AsyncClient, metrics: Metrics) -> None:
    async def count(task: str, model: str, status: str) -> float | None:
        labels = {"task": task, "model": model, "status": status}
        return metrics.registry.get_sample_value("padserve_requests_total", labels)

    await client.post("/echo", json={"inputs": "a"})
    await client.post("/echo", json={"inputs": "a", "model": "made-up"})
    await client.post("/echo", json={"inputs": 5})
    await client.get("/nowhere")
    await client.get("/echo")
    assert await count("echo", "tiny", "200") == 2
    assert await count("echo", "", "422") == 1
    assert await count("other", "", "404") == 1
    assert await count("other", "", "405") == 1
    assert b"made-up" not in metrics.render()


async def test_unknown_names_make_no_series(client: httpx.AsyncClient, service: Any, metrics: Metrics) -> None:
    service.outcome = KeyError("x")
    before = None
    for number in range(5):
        await client.post("/echo", json={"inputs": "a", "model": f"model-{number}"})
        await client.get(f"/route-{number}")
        before = before or len(metrics.render().splitlines())
    assert len(metrics.render().splitlines()) == before


async def test_models(client: httpx.AsyncClient) -> None:
    [model] = (await client.get("/models")).json()["models"]
    assert (model["name"], model["tasks"], model["default"], model["max_length"]) == ("tiny", ["echo"], True, 16)


async def test_one_model(client: httpx.AsyncClient) -> None:
    model = (await client.get("/models/tiny")).json()
    assert (model["dtype"], model["queue_depth"], model["tasks"]) == ("float32", 0, ["echo"])


async def test_unknown_model_lists_the_known_ones(client: httpx.AsyncClient) -> None:
    for path in ("/models/none", "/models/some/body", "/models/some%2Fbody"):
        reply = await client.get(path)
        assert (reply.status_code, reply.json()["code"], reply.json()["models"]) == (404, "unknown_model", ["tiny"])


async def test_root_lists_the_routes(client: httpx.AsyncClient) -> None:
    root = (await client.get("/")).json()
    assert (root["name"], root["version"]) == ("padserve", __version__)
    assert root["routes"]["/echo"] == ["POST"]
    assert {"/livez", "/models/{name}", "/openapi.json", "/docs"} <= root["routes"].keys()


async def test_openapi_describes_the_task(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    operation = document["paths"]["/echo"]["post"]
    schemas = document["components"]["schemas"]
    assert document["openapi"].startswith("3.1")
    body = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    assert schemas[body]["required"] == ["inputs"]
    assert schemas[body]["additionalProperties"] is False
    assert schemas[body]["properties"]["top_k"] == {"type": "integer", "minimum": 1, "maximum": 100, "default": 5}
    reply = operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    assert {"$ref": "#/components/schemas/EchoResult"} in schemas[reply]["properties"]["results"]["items"]["anyOf"]
    assert set(schemas["EchoResult"]["properties"]) == {"text", "score", "tokens", "truncated"}
    for status in ("400", "404", "413", "415", "422", "429", "503", "504"):
        assert operation["responses"][status]["content"]["application/problem+json"]


async def test_openapi_is_whole(client: httpx.AsyncClient) -> None:
    """Every reference leads somewhere, every path answers, every operation has its own name."""
    text = (await client.get("/openapi.json")).text
    document = msgspec.json.decode(text)
    assert set(re.findall(r'"#/components/schemas/(\w+)"', text)) <= document["components"]["schemas"].keys()
    operations = [(path, method, op) for path, item in document["paths"].items() for method, op in item.items()]
    assert len({op["operationId"] for _, _, op in operations}) == len(operations)
    for path, method, _ in operations:
        reply = await client.request(method, path.replace("{name}", "tiny"), json={"inputs": "a"})
        assert reply.status_code == 200, path


async def test_openapi_of_a_server_with_keys(keyed: httpx.AsyncClient) -> None:
    document = (await keyed.get("/openapi.json", headers={"X-API-Key": "first-key"})).json()
    assert document["security"] == [{"key": []}]
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert document["paths"]["/livez"]["get"]["security"] == []
    assert "security" not in document["paths"]["/echo"]["post"]


async def test_docs_load_only_from_here(client: httpx.AsyncClient) -> None:
    page = await client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "//" not in page.text, "an address outside"
    files = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    for name in [name for name in files if not name.startswith("data:")]:
        assert (await client.get(f"/{name}")).status_code == 200, name
    assert 'url: "openapi.json"' in (await client.get("/docs/start.js")).text


@pytest.mark.parametrize("name", ["swagger-ui-bundle.js", "swagger-ui.css"])
async def test_docs_files_are_the_same_with_and_without_compression(client: httpx.AsyncClient, name: str) -> None:
    small = await client.get(f"/docs/{name}", headers={"Accept-Encoding": "gzip"})
    plain = await client.get(f"/docs/{name}", headers={"Accept-Encoding": "identity"})
    assert small.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert small.content == plain.content
    assert b"swagger-ui" in plain.content


async def test_access_line(client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "padserve.access")
    reply = await client.post("/echo", json={"inputs": "private words"})
    await client.post("/echo", json={"inputs": 5, "model": "private words"})
    await client.get("/livez")
    await client.get("/metrics")
    served, refused = caplog.records
    line = vars(served)
    assert line["request_id"] == reply.headers["x-request-id"]
    assert (line["task"], line["model"], line["status"], line["tokens"]) == ("echo", "tiny", 200, 7)
    assert (line["queue_ms"], line["run_ms"], line["batch_size"]) == (2.0, 30.5, 4)
    assert line["total_ms"] > 0
    assert (vars(refused)["status"], vars(refused)["error"]) == (422, "invalid_field")
    assert "private words" not in str([vars(record) for record in caplog.records])
