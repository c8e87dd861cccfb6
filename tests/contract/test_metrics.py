"""/metrics: the families of section 5 are there, requests are counted once, and clients cannot make series."""

import re

import httpx
import pytest

from tests.contract.metrics import matching, samples, total
from tests.contract.routes import CLASSIFY, LONG, ROUTES, Route, name_of

FAMILIES = {
    "requests by task, model and status": r"requests_total",
    "queue depth": r"queue_depth",
    "queue seconds": r"queue_seconds_(count|sum|bucket)",
    "batch size": r"batch_size_(count|sum|bucket)",
    "batch tokens": r"batch_tokens_(count|sum|bucket)",
    "padding waste": r"padding_waste(_ratio)?(_(count|sum|bucket))?",
    "tokenize seconds": r"tokenize_seconds_(count|sum|bucket)",
    "run seconds": r"run_seconds_(count|sum|bucket)",
    "post seconds": r"post_seconds_(count|sum|bucket)",
    "tokens in": r"tokens_in_total|tokens_in",
    "worker restarts": r"worker_restarts_total",
}


@pytest.mark.parametrize("what", FAMILIES)
def test_families(client: httpx.Client, what: str) -> None:
    client.post("/classify", json=CLASSIFY.one)
    names = {sample.name for sample in samples(client)}
    assert [name for name in names if re.fullmatch(f"padserve_({FAMILIES[what]})", name)], sorted(names)


def test_requests_carry_task_model_and_status(client: httpx.Client) -> None:
    client.post("/classify", json=CLASSIFY.one)
    assert list(matching(samples(client), "padserve_requests_total", task="classify", model="bert-cls", status="200"))


@pytest.mark.parametrize("route", ROUTES, ids=name_of)
def test_a_request_counts_exactly_once(client: httpx.Client, route: Route) -> None:
    labels = {"task": route.path[1:], "model": route.model, "status": "200"}
    before = total(client, "padserve_requests_total", **labels), total(client, "padserve_requests_total")
    for _ in range(3):
        assert client.post(route.path, json=route.many).status_code == 200
    assert total(client, "padserve_requests_total", **labels) - before[0] == 3
    # The scrapes themselves may be counted, under another task.
    tasks = {sample.labels["task"] for sample in matching(samples(client), "padserve_requests_total", status="200")}
    assert route.path[1:] in tasks


@pytest.mark.parametrize(
    ("change", "status"), [({"inputs": []}, "422"), ({"inputs": LONG}, "422"), ({"model": "none-such"}, "404")]
)
def test_an_error_counts_once_under_its_status(client: httpx.Client, change: dict[str, object], status: str) -> None:
    before = total(client, "padserve_requests_total", task="classify", status=status)
    client.post("/classify", json=CLASSIFY.one | change)
    assert total(client, "padserve_requests_total", task="classify", status=status) - before == 1


def test_tokens_in_are_those_of_usage(client: httpx.Client) -> None:
    before = total(client, "padserve_tokens_in_total", model="bert-cls")
    used = client.post("/classify", json=CLASSIFY.many).json()["usage"]["input_tokens"]
    assert total(client, "padserve_tokens_in_total", model="bert-cls") - before == used


def test_a_batch_is_counted_with_what_was_run(client: httpx.Client) -> None:
    names = ("padserve_batch_tokens_sum", "padserve_batch_size_sum")
    before = [total(client, name, model="bert-cls") for name in names]
    used = client.post("/classify", json=CLASSIFY.many).json()["usage"]["input_tokens"]
    after = [total(client, name, model="bert-cls") for name in names]
    assert [later - earlier for later, earlier in zip(after, before, strict=True)] == [used, 3]


def test_names_that_clients_make_up_create_no_series(client: httpx.Client) -> None:
    def series() -> set[tuple[str, str]]:
        return {(sample.name, str(sorted(sample.labels.items()))) for sample in samples(client)}

    def nonsense(number: int) -> None:
        client.post("/classify", json=CLASSIFY.one | {"model": f"made-up-{number}"})
        client.post(f"/route-{number}", json={})
        client.get(f"/models/made-up-{number}")
        client.request(f"VERB{number}", "/classify")

    nonsense(0)
    before = series()
    for number in range(1, 20):
        nonsense(number)
    assert series() == before
    assert "made-up" not in client.get("/metrics").text


@pytest.mark.parametrize("accept", ["gzip", "gzip, deflate, br", "*"])
def test_metrics_are_never_compressed(client: httpx.Client, accept: str) -> None:
    reply = client.get("/metrics", headers={"accept-encoding": accept})
    assert "content-encoding" not in reply.headers
    assert reply.headers["content-type"].startswith("text/plain")
    assert "padserve_requests_total" in reply.text


def test_queues_are_empty_when_nobody_asks(client: httpx.Client) -> None:
    client.post("/classify", json=CLASSIFY.many)
    assert total(client, "padserve_queue_depth") == 0
