"""The rules of every native route."""

from typing import Any

import pytest

from .conftest import Running

TEXT = "The capital of France is Paris."
LONG = "passport office " * 80
BODIES: dict[str, dict[str, Any]] = {
    "/fill-mask": {"inputs": "The capital of [MASK] is Paris."},
    "/classify": {"inputs": TEXT},
    "/zero-shot": {"inputs": TEXT, "labels": ["sport", "law"]},
    "/token-classify": {"inputs": TEXT},
    "/embed": {"inputs": TEXT},
    "/rerank": {"query": "France", "documents": [TEXT, "Lisbon"]},
    "/similarity": {"inputs": {"source": TEXT, "sentences": ["Lisbon"]}},
    "/tokenize": {"inputs": TEXT},
}
JSON = {"Content-Type": "application/json"}
TEXT_PLAIN = {"Content-Type": "text/plain"}
LISTED = [route for route in BODIES if route != "/rerank"]
ROUTES = pytest.mark.parametrize("route", BODIES)


def problem(reply: Any, status: int, code: str) -> dict[str, Any]:
    """The problem object of a reply, which must be one."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"].startswith("application/problem+json")
    found: dict[str, Any] = reply.json()
    assert found["code"] == code, found
    assert found["status"] == status
    assert found["title"]
    assert found["detail"]
    assert found["type"]
    assert reply.headers["x-request-id"]
    return found


@ROUTES
def test_envelope_and_headers(server: Running, route: str) -> None:
    reply = server.post(route, BODIES[route], headers={"X-Request-Id": "mine-1"})
    assert reply.status_code == 200, reply.text
    body = reply.json()
    assert set(body) == {"model", "results", "usage"}
    assert body["usage"]["input_tokens"] > 0
    assert isinstance(body["results"], list)
    assert all("tokens" in result and "truncated" in result for result in body["results"])
    assert reply.headers["x-request-id"] == "mine-1"
    for part in ("tokenize", "queue", "run", "post"):
        assert f"{part};dur=" in reply.headers["server-timing"]
    assert int(reply.headers["x-padserve-batch-size"]) >= (0 if route == "/tokenize" else 1)
    assert int(reply.headers["x-padserve-batch-tokens"]) >= 0


@pytest.mark.parametrize("route", LISTED)
def test_one_is_a_list_of_one_and_order_is_kept(server: Running, route: str) -> None:
    body = BODIES[route]
    alone = server.post(route, body).json()["results"]
    assert len(alone) == 1
    other = server.post(route, body | {"inputs": [body["inputs"], body["inputs"], body["inputs"]]}).json()["results"]
    assert len(other) == 3
    assert problem(server.post(route, body | {"inputs": []}), 422, "empty_inputs")


@ROUTES
def test_models_are_chosen_by_name_and_refused_by_name(server: Running, route: str) -> None:
    found = problem(server.post(route, BODIES[route] | {"model": "nobody"}), 404, "unknown_model")
    assert "classes" in found["detail"]
    if route != "/tokenize":
        wrong = "mlm" if route != "/fill-mask" else "ner"
        problem(server.post(route, BODIES[route] | {"model": wrong}), 422, "wrong_task")


@ROUTES
@pytest.mark.parametrize("extra", [{"nonsense": 1}, {"truncate": "yes"}, {"timeout_ms": "5"}, {"timeout_ms": 5.0}])
@pytest.mark.parametrize("more", [{}])
def test_fields_are_strict(server: Running, route: str, extra: dict[str, Any], more: dict[str, Any]) -> None:
    problem(server.post(route, BODIES[route] | extra | more), 422, "invalid_field")


@pytest.mark.parametrize("top_k", ["5", 5.0, True, 0, -1, 10**20])
def test_top_k_is_a_bounded_whole_number(server: Running, top_k: Any) -> None:
    for route in ("/fill-mask", "/classify", "/rerank"):
        problem(server.post(route, BODIES[route] | {"top_k": top_k}), 422, "invalid_field")


@pytest.mark.parametrize("route", ["/classify", "/token-classify", "/embed"])
def test_too_long_is_an_error_with_both_lengths_unless_cut(server: Running, route: str) -> None:
    found = problem(server.post(route, {"inputs": LONG}), 422, "input_too_long")
    assert found["length"] > found["max_length"] == 64
    (cut,) = server.post(route, {"inputs": LONG, "truncate": True}).json()["results"]
    assert cut["truncated"]
    assert cut["tokens"] == 64
    (left,) = server.post(route, {"inputs": LONG + TEXT, "truncate": True, "truncation_side": "left"}).json()["results"]
    assert left["truncated"]


def test_a_bad_item_fails_alone_and_all_bad_fail_the_request(server: Running) -> None:
    reply = server.post("/embed", {"inputs": [TEXT, LONG, "Lisbon"]})
    assert reply.status_code == 200
    good, bad, also_good = reply.json()["results"]
    assert bad["error"]["code"] == "input_too_long"
    alone = server.post("/embed", {"inputs": TEXT}).json()["results"][0]["embedding"]
    assert good["embedding"] == pytest.approx(alone, abs=1e-4)
    assert "embedding" in also_good
    problem(server.post("/embed", {"inputs": [LONG, LONG]}), 422, "input_too_long")
    problem(server.post("/fill-mask", {"inputs": "no mask"}), 422, "no_mask")


RAW = {
    b'{"inputs": "a"': (400, "malformed_json"),
    b'{"inputs": NaN}': (400, "malformed_json"),
    b'{"inputs": "\\ud83d"}': (400, "bad_encoding"),
    b'{"inputs": "\\ud83d tail"}': (400, "bad_encoding"),
    b'{"inputs": "\xff\xfe"}': (400, "bad_encoding"),
    b"": (400, "malformed_json"),
    b"[]": (422, "invalid_field"),
    b"{}": (422, "invalid_field"),
}


@pytest.mark.parametrize("body", RAW, ids=repr)
def test_bodies_that_are_no_json(server: Running, body: bytes) -> None:
    reply = server.client.post("/embed", content=body, headers=JSON)
    status, code = RAW[body]
    problem(reply, status, code)


def test_bom_and_duplicate_keys(server: Running) -> None:
    """A byte-order mark is accepted, of duplicate keys the last wins, as Python's own json has it."""
    for body in (b'\xef\xbb\xbf{"inputs": "a"}', b'{"inputs": "b", "inputs": "a"}'):
        assert server.client.post("/embed", content=body, headers=JSON).status_code == 200


def test_statuses_of_http(server: Running) -> None:
    problem(server.client.get("/nothing"), 404, "not_found")
    problem(server.client.get("/embed"), 405, "method_not_allowed")
    problem(server.client.post("/embed", content=b"a=b", headers=TEXT_PLAIN), 415, "unsupported_media_type")
    huge = b'{"inputs": "' + b"a" * 2_100_000 + b'"}'
    problem(server.client.post("/embed", content=huge, headers=JSON), 413, "body_too_large")


def test_deadline_of_field_and_header(server: Running) -> None:
    crowd = {"inputs": [LONG[:400]] * 400, "truncate": True}
    problem(server.post("/token-classify", crowd | {"timeout_ms": 1}), 504, "deadline_exceeded")
    problem(server.post("/token-classify", crowd, headers={"X-Request-Timeout-Ms": "1"}), 504, "deadline_exceeded")
    smaller = {"X-Request-Timeout-Ms": "1"}
    problem(server.post("/token-classify", crowd | {"timeout_ms": 60_000}, headers=smaller), 504, "deadline_exceeded")
    assert server.post("/embed", BODIES["/embed"] | {"timeout_ms": 60_000, "priority": "bulk"}).status_code == 200


def test_operations(server: Running) -> None:
    for route in ("/livez", "/readyz", "/startupz"):
        assert server.client.get(route).status_code == 200
    assert {model["name"] for model in server.client.get("/models").json()["models"]} >= {"mlm", "ner"}
    one = server.client.get("/models/classes").json()
    assert one["runs"] == "packed, fused"
    assert one["deviation"] < 1e-4
    problem(server.client.get("/models/nobody"), 404, "unknown_model")
    assert server.client.get("/docs").status_code == 200


def test_openapi_describes_every_route(server: Running) -> None:
    paths = server.client.get("/openapi.json").json()["paths"]
    for route in BODIES:
        operation = paths[route]["post"]
        assert operation["requestBody"]["content"]["application/json"]["schema"]
        assert operation["responses"]["200"]["content"]["application/json"]["schema"]


def test_metrics_count_a_request_once_and_know_no_made_up_model(server: Running) -> None:
    name = 'padserve_requests_total{model="classes",status="200",task="classify"}'
    before = server.metric(name)
    assert server.post("/classify", {"inputs": TEXT, "model": "classes"}).status_code == 200
    assert server.metric(name) == before + 1
    server.post("/classify", {"inputs": TEXT, "model": "made-up"})
    text = server.client.get("/metrics", headers={"Accept-Encoding": "gzip"})
    assert "made-up" not in text.text
    assert "content-encoding" not in text.headers
    for wanted in ("queue_depth", "queue_seconds", "batch_size", "batch_tokens", "padding_waste", "worker_restarts"):
        assert f"padserve_{wanted}" in text.text
