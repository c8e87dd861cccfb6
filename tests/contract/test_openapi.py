"""/openapi.json and /docs, and a fuzz of every route: no body makes a 5xx."""

import json
import re
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.replies import describe, envelope, problem
from tests.contract.routes import ROUTES, Route, name_of

FIELDS = {
    "/fill-mask": {"inputs", "top_k", "targets"},
    "/classify": {"inputs", "top_k", "activation"},
    "/zero-shot": {"inputs", "labels", "hypothesis_template", "multi_label"},
    "/token-classify": {"inputs", "aggregation", "stride"},
    "/embed": {"inputs", "normalize", "dimensions", "pooling", "prompt", "prompt_name", "encoding", "precision"},
    "/rerank": {"query", "documents", "top_k", "return_documents", "activation"},
    "/similarity": {"inputs"},
    "/tokenize": {"inputs", "add_special_tokens"},
}
ENTRY = {
    "/fill-mask": {"masks"},
    "/classify": {"labels"},
    "/zero-shot": {"labels", "method"},
    "/token-classify": {"entities"},
    "/embed": {"embedding"},
    "/rerank": {"index", "score", "document"},
    "/similarity": {"scores"},
    "/tokenize": {"ids", "offsets"},
}
SHARED = {"model", "truncate", "truncation_side", "priority", "timeout_ms"}
every_route = pytest.mark.parametrize("route", ROUTES, ids=name_of)


@pytest.fixture(scope="module")
def schema(client: httpx.Client) -> dict[str, Any]:
    reply = client.get("/openapi.json")
    assert reply.status_code == 200
    found: dict[str, Any] = reply.json()
    assert found["openapi"].startswith("3.")
    return found


def follow(schema: dict[str, Any], reference: str) -> Any:
    node: Any = schema
    for part in reference.removeprefix("#/").split("/"):
        node = node[part.replace("~1", "/")]
    return node


def properties(schema: dict[str, Any], node: Any, depth: int = 6) -> set[str]:
    """Every property name that can be reached from a schema node."""
    if depth == 0 or not isinstance(node, dict | list):
        return set()
    if isinstance(node, list):
        return set().union(*(properties(schema, item, depth) for item in node), set())
    found = set(node.get("properties", {}))
    if "$ref" in node:
        found |= properties(schema, follow(schema, node["$ref"]), depth - 1)
    for key in ("items", "allOf", "anyOf", "oneOf", "schema", "additionalProperties"):
        found |= properties(schema, node.get(key), depth)
    for value in node.get("properties", {}).values():
        found |= properties(schema, value, depth - 1)
    return found


@every_route
def test_every_field_of_a_request_is_described(schema: dict[str, Any], route: Route) -> None:
    content = schema["paths"][route.path]["post"]["requestBody"]["content"]
    assert set(content) == {"application/json"}
    assert FIELDS[route.path] | SHARED <= properties(schema, content["application/json"])


@every_route
def test_every_field_of_a_reply_is_described(schema: dict[str, Any], route: Route) -> None:
    responses = schema["paths"][route.path]["post"]["responses"]
    assert "200" in responses
    described = properties(schema, responses["200"]["content"]["application/json"])
    assert ENTRY[route.path] | {"model", "results", "usage", "tokens", "truncated"} <= described


@every_route
def test_errors_are_described(schema: dict[str, Any], route: Route) -> None:
    responses = schema["paths"][route.path]["post"]["responses"]
    described = {status for status in responses if status.startswith(("4", "5"))}
    assert {"400", "404", "413", "422", "429", "503", "504"} <= described
    for status in described:
        assert "application/problem+json" in responses[status]["content"], status


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/startupz", "/metrics", "/models", "/models/{name}"])
def test_operations_are_described(schema: dict[str, Any], path: str) -> None:
    assert "get" in schema["paths"][path]


def test_references_lead_somewhere(schema: dict[str, Any]) -> None:
    for reference in set(re.findall(r'"\$ref": "([^"]+)"', json.dumps(schema))):
        assert reference.startswith("#/")
        assert follow(schema, reference) is not None


def test_operation_ids_differ(schema: dict[str, Any]) -> None:
    ids = [
        operation["operationId"]
        for path in schema["paths"].values()
        for operation in path.values()
        if isinstance(operation, dict) and "operationId" in operation
    ]
    assert len(ids) == len(set(ids))


def test_docs_work_with_no_internet(client: httpx.Client) -> None:
    page = client.get("/docs", follow_redirects=True)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert not re.findall(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", page.text)
    assets = re.findall(r"""(?:src|href)\s*=\s*["']([^"'#]+)["']""", page.text)
    for asset in [each for each in assets if not each.startswith("data:")]:
        reply = client.get(str(page.url.join(asset)))
        assert reply.status_code == 200, asset
        assert reply.content, asset


def test_a_model_says_how_far_it_is_from_the_plain_one(client: httpx.Client) -> None:
    for name in ("bert-cls", "roberta-mlm", "xlmr-ner", "modernbert-cls"):
        described = client.get(f"/models/{name}").json()
        assert described["batching"] == "packed", described
        assert described["deviation"] < 1e-4


def test_models_are_listed_and_described(client: httpx.Client) -> None:
    listed = client.get("/models").json()["models"]
    assert {"bert-cls", "st-mean", "bert-mlm"} <= {model["name"] for model in listed}
    for model in listed[:3]:
        page = client.get(f"/models/{model['name']}")
        assert page.status_code == 200
        described = page.json()
        assert described["name"] == model["name"]
        assert {"tasks", "dtype", "buckets", "max_length"} <= set(described)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**25), 10**25)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc_", max_size=5), inner, max_size=3),
    max_leaves=6,
)


def fields(route: Route) -> st.SearchStrategy[dict[str, Any]]:
    names = sorted(FIELDS[route.path] | SHARED | {"extra"})
    sensible = st.sampled_from(
        ["auto", "mean", "float", "none", "left", "bulk", 1, 5, True, False, "[MASK] a", ["a"], {}]
    )
    return st.dictionaries(st.sampled_from(names), json_values | sensible, max_size=4)


def check(reply: httpx.Response) -> None:
    if reply.status_code == 200:
        envelope(reply)
        assert not re.search(r":\s*(NaN|-?Infinity)", reply.text)
    else:
        # The deadline that the fuzz itself may set is the one 5xx that is right.
        assert reply.status_code < 500 or reply.json()["code"] == "deadline_exceeded", describe(reply)
        problem(reply, reply.status_code)


@every_route
def test_no_body_makes_a_server_error(client: httpx.Client, route: Route) -> None:
    @settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(fields(route), st.sampled_from([route.one, route.many, {}]))
    def fuzz(changes: dict[str, Any], base: dict[str, Any]) -> None:
        check(client.post(route.path, content=json.dumps(base | changes), headers={"content-type": "application/json"}))

    fuzz()


@every_route
def test_no_bytes_make_a_server_error(client: httpx.Client, route: Route) -> None:
    @settings(max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(max_size=64), st.integers(0, 200))
    def fuzz(noise: bytes, position: int) -> None:
        body = json.dumps(route.one).encode()
        position %= len(body)
        mixed = body[:position] + noise + body[position + len(noise) // 2 :]
        check(client.post(route.path, content=mixed, headers={"content-type": "application/json"}))

    fuzz()
