"""Section 5: the start, the keys, the log, the end. A Unix socket serves as well as a port."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contract.checkpoints import slow_classifier
from tests.contract.metrics import total
from tests.contract.pending import Pending, sent, wait_for
from tests.contract.replies import describe, problem, served
from tests.contract.routes import ROUTES, Route, name_of
from tests.contract.server import Server, free_port, launch, write_config

TEXT = "winter " * 76
OPEN = ["/livez", "/readyz", "/startupz", "/metrics"]


def answers(server: Server, path: str) -> list[httpx.Response]:
    """What a route said while the server started, in order."""
    return [reply for reply in server.start if reply.request.url.path == path]


def test_livez_is_green_from_the_first_answer_on(server: Server) -> None:
    assert [reply.status_code for reply in answers(server, "/livez")] == [200] * len(answers(server, "/livez"))


@pytest.mark.parametrize("path", ["/readyz", "/startupz"])
def test_red_while_models_load_then_green(server: Server, path: str) -> None:
    statuses = [reply.status_code for reply in answers(server, path)]
    assert statuses[0] == 503
    assert statuses[-1] == 200
    assert statuses == sorted(statuses, reverse=True), "green, and red again"


def test_readyz_says_why_and_when_to_come_back(server: Server, folders: dict[str, Path]) -> None:
    red = [reply for reply in answers(server, "/readyz") if reply.status_code == 503]
    assert red, "the port is open before the models are loaded"
    for reply in red:
        reasons = problem(reply, 503)["reasons"]
        assert [name for name in folders for reason in reasons if name in reason and "loading" in reason], reasons
        assert int(reply.headers["retry-after"]) >= 1


def test_work_during_the_start_is_told_to_wait(server: Server) -> None:
    early = answers(server, "/classify")
    assert early, "the port is open before the models are loaded"
    for reply in early:
        problem(reply, 503, "starting")
        assert int(reply.headers["retry-after"]) >= 1


def test_the_last_model_is_loaded_before_readyz_is_green(client: httpx.Client, folders: dict[str, Path]) -> None:
    assert [model["name"] for model in client.get("/models").json()["models"]] == list(folders)


@pytest.mark.parametrize("path", OPEN)
def test_head_of_health_is_get_without_its_body(client: httpx.Client, path: str) -> None:
    reply = client.head(path)
    assert reply.status_code == 200
    assert reply.content == b""


@pytest.fixture(scope="module")
def guarded(folders: dict[str, Path], socket_folder: Path) -> Iterator[Server]:
    """A server with keys, on a Unix socket."""
    keys = socket_folder / "keys"
    keys.write_text("# of the shop\nfirst-key\n\n   \n  second-key  \n# third-key\n")
    uds = str(socket_folder / "guarded")
    models = [{"name": "bert-cls", "source": folders["bert-cls"]}]
    settings = {"uds": uds, "api_keys_file": str(keys)}
    config = write_config(socket_folder / "padserve.toml", settings, models)
    running = launch(socket_folder, config, uds=uds)
    try:
        yield running.wait_ready()
    finally:
        code = running.terminate()
    assert code == 0, running.output[-4000:]


@pytest.fixture(scope="module")
def guest(guarded: Server) -> Iterator[httpx.Client]:
    """A client without a key."""
    with guarded.client() as session:
        yield session


def ask(guest: httpx.Client, headers: dict[str, Any] | None = None) -> httpx.Response:
    return guest.post("/classify", json={"inputs": "music"}, headers=headers)


def refused(reply: httpx.Response) -> None:
    problem(reply, 401, "unauthorized")
    assert reply.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("key", ["first-key", "second-key"])
def test_a_key_of_the_file_opens(guest: httpx.Client, key: str) -> None:
    served(ask(guest, {"Authorization": f"Bearer {key}"}), 1)


WRONG = [
    "",
    "Bearer",
    "Bearer wrong",
    "Bearer first-key2",
    "Bearer first",
    "first-key",
    "Basic Zmlyc3Qta2V5",
    "Bearer #",
]


@pytest.mark.parametrize("value", [None, *WRONG, b"Bearer \xff\xfe", b"\x80"])
def test_no_key_or_a_wrong_one(guest: httpx.Client, value: str | bytes | None) -> None:
    refused(ask(guest, None if value is None else {"Authorization": value}))


@pytest.mark.parametrize("key", ["# of the shop", "# third-key", "third-key", "of the shop"])
def test_comments_are_no_keys(guest: httpx.Client, key: str) -> None:
    refused(ask(guest, {"Authorization": f"Bearer {key}"}))


@pytest.mark.parametrize("path", OPEN)
def test_health_and_metrics_need_no_key(guest: httpx.Client, path: str) -> None:
    """Health behind an API key: the probe gets 401."""
    assert guest.get(path).status_code == 200
    assert guest.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 200


@pytest.mark.parametrize("route", ROUTES, ids=name_of)
def test_every_task_needs_a_key(guest: httpx.Client, route: Route) -> None:
    refused(guest.post(route.path, json=route.one))


@pytest.mark.parametrize("path", ["/models", "/models/bert-cls", "/models/none-such"])
def test_what_is_served_is_told_to_those_with_a_key(guest: httpx.Client, path: str) -> None:
    refused(guest.get(path))
    assert guest.get(path, headers={"Authorization": "Bearer first-key"}).status_code == (
        404 if "none" in path else 200
    )


def access_lines(server: Server) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in server.stderr.splitlines()]
    return [line for line in lines if line.get("path") == "/classify"]


def test_the_log_has_one_json_line_a_request(guarded: Server, guest: httpx.Client) -> None:
    headers = {"Authorization": "Bearer first-key", "X-Request-Id": "shop-7"}
    used = ask(guest, headers).json()["usage"]["input_tokens"]
    refused(ask(guest, {"X-Request-Id": "shop-8"}))
    wait_for(lambda: any(line["request_id"] == "shop-8" for line in access_lines(guarded)), "the access line")
    (line,) = [line for line in access_lines(guarded) if line["request_id"] == "shop-7"]
    assert (line["model"], line["tokens"], line["status"]) == ("bert-cls", used, 200)
    assert line["queue_ms"] >= 0
    assert line["run_ms"] > 0
    (line,) = [line for line in access_lines(guarded) if line["request_id"] == "shop-8"]
    assert line["status"] == 401


def test_keys_and_texts_never_stand_in_the_log(guarded: Server, guest: httpx.Client) -> None:
    headers = {"Authorization": "Bearer first-key"}
    ask(guest, headers)
    guest.post("/classify", json={"inputs": ["xylophone"], "model": "none-such"}, headers=headers)
    guest.post("/classify", json={"inputs": "xylophone"}, headers={"Authorization": "Bearer wrong-key"})
    guest.post("/classify", content=b'{"inputs": "xylophone', headers=headers)
    for secret in ("first-key", "second-key", "wrong-key", "xylophone"):
        assert secret not in guarded.output


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[list[Server]]:
    """Servers of one test; ended with it if it did not end them."""
    running: list[Server] = []
    yield running
    for server in running:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait(10)


def start_slow(folder: Path, launched: list[Server], **settings: Any) -> Server:
    slow_classifier(folder / "slow-cls")
    port = free_port()
    models = [{"name": "slow-cls", "source": folder / "slow-cls"}]
    config = write_config(folder / "padserve.toml", {"port": port, **settings}, models)
    launched.append(launch(folder, config, port=port))
    return launched[-1].wait_ready()


def accepted(client: httpx.Client, count: int) -> None:
    """Wait until the last request too is queued: more than the others' sequences wait."""
    wait_for(lambda: total(client, "padserve_queue_depth") > count, "all requests queued")


def test_sigterm_finishes_what_runs_and_takes_no_more(tmp_path: Path, launched: list[Server]) -> None:
    server = start_slow(tmp_path, launched)
    bodies = [{"inputs": [TEXT] * 160} for _ in range(4)]
    with server.client() as old, sent(server, "/classify", bodies) as running:
        accepted(old, 3 * 160)
        server.process.terminate()
        with server.client() as new:
            wait_for(lambda: new.get("/readyz").status_code == 503, "a red /readyz", 5)
            for client in (new, old):
                reply = client.get("/readyz")
                assert any("drain" in reason for reason in problem(reply, 503)["reasons"]), describe(reply)
                assert client.get("/livez").status_code == 200
                late = client.post("/classify", json={"inputs": "late"})
                problem(late, 503, "draining")
                assert int(late.headers["retry-after"]) >= 1
        assert not all(each.answered() for each in running), "nothing was running any more: this test shows nothing"
        replies = [each.reply() for each in running]
    assert [(status, len(reply["results"])) for status, reply in replies] == [(200, 160)] * 4
    assert server.wait_exit() == 0, server.output[-4000:]
    assert not server.reachable()


def test_what_outlasts_the_drain_ends_with_an_error_and_not_in_silence(tmp_path: Path, launched: list[Server]) -> None:
    server = start_slow(tmp_path, launched, drain_timeout_s=0.5, workers=1, threads=1)
    bodies = [{"inputs": [TEXT] * 500} for _ in range(5)]
    with server.client() as client, sent(server, "/classify", bodies) as running:
        accepted(client, 4 * 500)
        began = time.monotonic()
        server.process.terminate()
        replies = [outcome(each) for each in running]
        assert server.wait_exit() == 0, server.output[-4000:]
    assert time.monotonic() - began < 15
    assert Counter(replies)[503, "draining"] >= 4, replies
    assert set(replies) <= {(503, "draining"), (200, None)}


def outcome(pending: Pending) -> tuple[int, str | None]:
    status, reply = pending.reply()
    return status, reply.get("code")
