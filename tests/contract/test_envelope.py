"""Section 1: the rules that hold for every native route."""

import re
from itertools import combinations
from typing import Any

import httpx
import pytest

from tests.contract.replies import close, describe, envelope, only, problem, results, served, token_count
from tests.contract.routes import CLASSIFY, LONG, MODEL_ROUTES, RERANK, ROUTES, TOKENIZE, Route, name_of

every_route = pytest.mark.parametrize("route", ROUTES, ids=name_of)
every_model_route = pytest.mark.parametrize("route", MODEL_ROUTES, ids=name_of)


def in_order(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rerank answers best first; everything else in input order already."""
    return sorted(entries, key=lambda entry: entry.get("index", 0))


def numbers(value: Any) -> list[float]:
    """Every number in a JSON value, in order."""
    if isinstance(value, dict):
        return [number for key in sorted(value) for number in numbers(value[key])]
    if isinstance(value, list):
        return [number for item in value for number in numbers(item)]
    return [float(value)] if isinstance(value, int | float) else []


@every_route
def test_one_input_gives_a_list_of_one_entry(client: httpx.Client, route: Route) -> None:
    body = envelope(client.post(route.path, json=route.one))
    assert body["model"] == route.model
    assert len(body["results"]) == 1
    assert token_count(body["results"][0]) > 0
    assert body["results"][0]["truncated"] is False


@every_route
def test_usage_counts_input_tokens_and_nothing_else(client: httpx.Client, route: Route) -> None:
    body = envelope(client.post(route.path, json=route.many))
    assert body["usage"] == {"input_tokens": sum(map(token_count, body["results"]))}


@every_route
def test_a_list_keeps_the_order_of_its_inputs(client: httpx.Client, route: Route) -> None:
    alone = [only(client.post(route.path, json=route.body([item]))) for item in route.items]
    together = in_order(served(client.post(route.path, json=route.many), len(route.items)))
    for position, entry in enumerate(together):
        expected = alone[position] | ({"index": position} if "index" in entry else {})
        assert entry.keys() == expected.keys()
        assert entry["tokens"] == expected["tokens"]
        close(numbers(entry), numbers(expected))
    assert len({str(entry) for entry in alone}) == len(alone), (
        "the inputs must be told apart for this test to mean much"
    )


@every_route
def test_a_list_of_one_is_the_input_itself(client: httpx.Client, route: Route) -> None:
    single = only(client.post(route.path, json=route.one))
    listed = only(client.post(route.path, json=route.body([route.items[0]])))
    assert single.keys() == listed.keys()
    close(numbers(single), numbers(listed))


@every_route
def test_without_model_the_first_default_that_serves_the_task_answers(client: httpx.Client, route: Route) -> None:
    body = {key: value for key, value in route.one.items() if key != "model"}
    assert envelope(client.post(route.path, json=body))["model"] == route.default_model


@every_route
def test_unknown_model(client: httpx.Client, route: Route) -> None:
    detail = problem(client.post(route.path, json=route.one | {"model": "bert-klassify"}), 404, "unknown_model")
    assert "bert-klassify" in detail["detail"]
    assert route.model in detail["detail"], "the names that are served are listed"


@every_model_route
def test_a_model_that_does_not_serve_the_task(client: httpx.Client, route: Route) -> None:
    reply = client.post(route.path, json=route.one | {"model": route.wrong_model})
    assert route.wrong_model in problem(reply, 422, "wrong_task")["detail"]


@every_route
def test_an_empty_list(client: httpx.Client, route: Route) -> None:
    problem(client.post(route.path, json=route.body([])), 422, "empty_inputs")


@every_route
def test_an_unknown_field_is_refused_and_named(client: httpx.Client, route: Route) -> None:
    reply = client.post(route.path, json=route.one | {"top_kk": 3})
    assert "top_kk" in problem(reply, 422, "invalid_field")["detail"]


@every_route
def test_a_missing_field_is_refused_and_named(client: httpx.Client, route: Route) -> None:
    for field in {route.inputs, *route.extra}:
        body = {key: value for key, value in route.one.items() if key != field}
        assert field in problem(client.post(route.path, json=body), 422, "invalid_field")["detail"]


@every_route
@pytest.mark.parametrize("wrong", ["5", 5.0, 5.5, 1e3, True, 0, -1, 10**20, [5], "soon"])
def test_timeout_ms_is_a_strict_positive_int(client: httpx.Client, route: Route, wrong: Any) -> None:
    reply = client.post(route.path, json=route.one | {"timeout_ms": wrong})
    assert "timeout_ms" in problem(reply, 422, "invalid_field")["detail"]


@every_route
@pytest.mark.parametrize(
    ("field", "wrong"),
    [("truncate", "yes"), ("truncate", 1), ("truncation_side", "middle"), ("priority", "urgent"), ("model", 3)],
)
def test_shared_fields_take_only_their_values(client: httpx.Client, route: Route, field: str, wrong: Any) -> None:
    assert field in problem(client.post(route.path, json=route.one | {field: wrong}), 422, "invalid_field")["detail"]


@every_route
@pytest.mark.parametrize("wrong", [5, None, True, {"text": 5}, [["a"]], [5], {"a": "b"}])
def test_inputs_of_a_wrong_type(client: httpx.Client, route: Route, wrong: Any) -> None:
    problem(client.post(route.path, json=route.body(wrong)), 422, "invalid_field")


@every_route
@pytest.mark.parametrize("priority", ["interactive", "bulk"])
def test_both_priorities_are_served(client: httpx.Client, route: Route, priority: str) -> None:
    served(client.post(route.path, json=route.many | {"priority": priority, "timeout_ms": 30_000}), len(route.items))


@every_model_route
def test_a_longer_input_is_refused_with_both_lengths(client: httpx.Client, route: Route) -> None:
    details = problem(client.post(route.path, json=route.body(route.too_long)), 422, "input_too_long")
    assert details["length"] > details["max_length"] == 128
    lengths = [int(number) for number in re.findall(r"\d+", details["detail"])]
    assert 128 in lengths, details
    assert max(lengths) > 2 * 128, details


@every_model_route
def test_a_longer_input_is_cut_when_asked(client: httpx.Client, route: Route) -> None:
    for side in ("right", "left"):
        item = route.too_long
        if route.path == "/fill-mask":
            item = f"[MASK] {LONG}" if side == "right" else f"{LONG} [MASK]"
        body = route.body([item, route.items[0]], truncate=True, truncation_side=side)
        cut, short = in_order(served(client.post(route.path, json=body), 2))
        assert cut["truncated"] is True
        assert short["truncated"] is False
        if route.path not in ("/zero-shot", "/similarity"):
            assert cut["tokens"] == 128


@every_model_route
def test_a_failing_item_does_not_fail_its_neighbours(client: httpx.Client, route: Route) -> None:
    body = route.body([route.items[0], route.too_long, route.items[1]])
    first, failed, last = in_order(results(client.post(route.path, json=body), 3))
    assert failed["error"]["code"] == "input_too_long"
    assert failed["error"]["message"]
    assert first["tokens"] > 0
    assert last["tokens"] > 0
    assert "error" not in first
    assert "error" not in last


@every_model_route
def test_when_every_item_fails_the_status_says_it(client: httpx.Client, route: Route) -> None:
    problem(client.post(route.path, json=route.body([route.too_long, route.too_long])), 422, "input_too_long")


def test_rerank_puts_a_failing_document_last(client: httpx.Client) -> None:
    entries = results(client.post("/rerank", json=RERANK.body([LONG, *RERANK.items])), 4)
    assert entries[-1]["index"] == 0
    assert "error" in entries[-1]
    assert sorted(entry["index"] for entry in entries) == [0, 1, 2, 3]


@every_route
def test_a_request_id_is_echoed_or_made(client: httpx.Client, route: Route) -> None:
    echoed = client.post(route.path, json=route.one, headers={"X-Request-Id": "shop-42/a"})
    assert echoed.headers["x-request-id"] == "shop-42/a"
    made = {client.post(route.path, json=route.one).headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2


@every_model_route
def test_timings_and_batch_of_a_reply(client: httpx.Client, route: Route) -> None:
    reply = client.post(route.path, json=route.many)
    timings = dict(re.findall(r"(\w+);dur=([0-9.]+)", reply.headers["server-timing"]))
    assert list(timings) == ["tokenize", "queue", "run", "post"], describe(reply)
    assert float(timings["run"]) > 0
    assert int(reply.headers["x-padserve-batch-size"]) >= 1
    assert int(reply.headers["x-padserve-batch-tokens"]) >= 1


def test_a_reply_that_needed_no_batch_has_the_same_headers(client: httpx.Client) -> None:
    reply = client.post("/tokenize", json=TOKENIZE.many)
    assert re.findall(r"(\w+);dur=[0-9.]+", reply.headers["server-timing"]) == ["tokenize", "queue", "run", "post"]
    assert reply.headers["x-padserve-batch-size"] == reply.headers["x-padserve-batch-tokens"] == "0"


def test_the_batch_holds_what_was_sent_together(client: httpx.Client) -> None:
    reply = client.post("/classify", json=CLASSIFY.many)
    tokens = [entry["tokens"] for entry in served(reply, 3)]
    sums = {sum(chosen) for size in (1, 2, 3) for chosen in combinations(tokens, size)}
    assert int(reply.headers["x-padserve-batch-tokens"]) in sums
