"""Section 1 under load: 429 and 413, clients that leave, deadlines, priorities; on a server of its own."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.contract.blackbox.checkpoints import slow_classifier
from tests.contract.blackbox.metrics import total
from tests.contract.blackbox.oracles import Oracles
from tests.contract.blackbox.replies import describe, labels_close, only, problem, served
from tests.contract.blackbox.server import Server, launch, write_config

MAX_QUEUE_TOKENS = 20_000
TEXT = "winter " * 76
"""78 tokens with the special ones."""
BACKLOG_ITEMS = 240
"""A request of 18,720 tokens: about two seconds of work."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("slow") / "slow-cls"
    slow_classifier(made)
    return made


@pytest.fixture(scope="module")
def busy(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("overload")
    uds = str(home / "s")
    settings = {"uds": uds, "max_queue_tokens": MAX_QUEUE_TOKENS}
    config = write_config(home / "padserve.toml", settings, [{"name": "slow-cls", "source": folder}])
    running = launch(home, config, uds=uds)
    try:
        yield running.wait_ready()
    finally:
        code = running.terminate()
    assert code == 0, running.output[-4000:]


@pytest.fixture
def near(busy: Server) -> Iterator[httpx.Client]:
    with busy.client() as client:
        settle(client)
        yield client
        settle(client)


def settle(client: httpx.Client, timeout_s: float = 20.0) -> None:
    """Wait until the queue is empty and an ordinary request is served."""
    wait_for(lambda: total(client, "padserve_queue_depth") == 0, timeout_s)
    only(client.post("/classify", json={"inputs": "music"}))


def wait_for(condition: Callable[[], bool], timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "the server did not come to rest in time"
        time.sleep(0.02)


def body(inputs: Any, **options: Any) -> dict[str, Any]:
    return {"model": "slow-cls", "inputs": inputs, **options}


async def flood(server: Server, bodies: list[dict[str, Any]]) -> list[httpx.Response]:
    """All bodies at once, each on a connection of its own."""

    async def part(some: list[dict[str, Any]]) -> list[httpx.Response]:
        async with server.async_client(connections=len(some)) as client:
            return await asyncio.gather(*(client.post("/classify", json=each) for each in some))

    # One pool for hundreds of connections would spend its time on looking through them.
    parts = await asyncio.gather(*(part(bodies[start : start + 32]) for start in range(0, len(bodies), 32)))
    return [reply for replies in parts for reply in replies]


@pytest.fixture
def backlog(busy: Server, near: httpx.Client) -> Iterator["Future[httpx.Response]"]:
    """A bulk request that keeps the workers busy for seconds, already queued."""
    with ThreadPoolExecutor(1) as pool, busy.client() as client:
        big = pool.submit(client.post, "/classify", json=body([TEXT] * BACKLOG_ITEMS, priority="bulk"))
        wait_for(lambda: total(near, "padserve_queue_depth") > 0, 10)
        yield big
        served(big.result(60), BACKLOG_ITEMS)


def test_a_flood_is_refused_with_retry_after_and_leaves_no_trace(
    busy: Server, near: httpx.Client
) -> None:
    bodies = [body([TEXT] * 12) if index % 2 else body([TEXT] * 13) for index in range(64)]
    process = psutil.Process(busy.process.pid)
    resident: list[int] = []
    for _ in range(3):
        replies = asyncio.run(flood(busy, bodies))
        statuses = Counter(reply.status_code for reply in replies)
        assert set(statuses) == {200, 429}, [describe(reply) for reply in replies if reply.status_code not in (200, 429)]
        for reply in replies:
            if reply.status_code == 429:
                problem(reply, 429, "queue_full")
                assert int(reply.headers["retry-after"]) >= 1
        settle(near)
        resident.append(process.memory_info().rss)
    assert resident[-1] - resident[0] < 64 * 2**20, resident
    assert near.get("/readyz").status_code == 200


def test_a_single_input_and_a_list_of_one_are_admitted_alike(busy: Server, near: httpx.Client) -> None:
    del near
    bodies = [body(TEXT) if index % 2 else body([TEXT]) for index in range(400)]
    replies = asyncio.run(flood(busy, bodies))
    for parity in (0, 1):
        statuses = Counter(reply.status_code for reply in replies[parity::2])
        assert set(statuses) == {200, 429}, statuses


def test_items_count_and_not_requests(near: httpx.Client, backlog: "Future[httpx.Response]") -> None:
    reply = near.post("/classify", json=body([TEXT] * 60))
    problem(reply, 429, "queue_full")
    assert not backlog.done()


def test_one_request_larger_than_the_whole_queue(near: httpx.Client) -> None:
    reply = near.post("/classify", json=body([TEXT] * 300))
    details = problem(reply, 413, "too_many_tokens")
    assert str(MAX_QUEUE_TOKENS) in details["detail"].replace(",", "").replace("_", "")
    assert "retry-after" not in reply.headers


def test_the_results_are_right_after_all_that(near: httpx.Client, folder: Path) -> None:
    texts = ["a dark winter", TEXT, "music"]
    oracle = Oracles({"slow-cls": folder})
    for text, entry in zip(texts, served(near.post("/classify", json=body(texts, activation="none")), 3), strict=True):
        labels_close(entry, oracle.classified("slow-cls", text))


async def leave(uds: str, payload: bytes, after_s: float) -> None:
    """Send a whole request, then drop the connection without reading the reply."""
    _, writer = await asyncio.open_unix_connection(uds)
    head = f"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    writer.write(head.encode() + payload)
    await writer.drain()
    await asyncio.sleep(after_s)
    writer.transport.abort()


async def leave_all(uds: str, count: int) -> None:
    payload = json.dumps(body(TEXT)).encode()
    await asyncio.gather(*(leave(uds, payload, 0.15 + 0.0005 * number) for number in range(count)))


def test_200_clients_that_leave_take_their_work_with_them(busy: Server, near: httpx.Client) -> None:
    before = total(near, "padserve_batch_tokens_sum")
    asyncio.run(leave_all(busy.uds, 200))
    wait_for(lambda: total(near, "padserve_queue_depth") == 0, 2)
    settle(near)
    ran = total(near, "padserve_batch_tokens_sum") - before
    assert ran < 0.9 * 200 * 78, f"{ran} tokens were run of {200 * 78} that nobody waited for"
    assert total(near, "padserve_requests_total", status="499") > 0


@pytest.mark.parametrize(
    ("field", "header"), [(30, None), (None, "30"), (30, "60000"), (60_000, "30"), (30, "30")]
)
def test_the_smaller_deadline_ends_a_request(
    near: httpx.Client, backlog: "Future[httpx.Response]", field: int | None, header: str | None
) -> None:
    fields = {} if field is None else {"timeout_ms": field}
    headers = {} if header is None else {"X-Request-Timeout-Ms": header}
    began = time.monotonic()
    reply = near.post("/classify", json=body([TEXT] * 5, priority="bulk", **fields), headers=headers)
    assert time.monotonic() - began < 1.0
    problem(reply, 504, "deadline_exceeded")
    assert not backlog.done()


def test_generous_deadlines_do_nothing(near: httpx.Client) -> None:
    reply = near.post("/classify", json=body(TEXT, timeout_ms=60_000), headers={"X-Request-Timeout-Ms": "50000"})
    served(reply, 1)


def test_work_past_its_deadline_is_dropped(
    busy: Server, near: httpx.Client, backlog: "Future[httpx.Response]"
) -> None:
    replies = asyncio.run(flood(busy, [body(TEXT, priority="bulk", timeout_ms=40) for _ in range(15)]))
    assert [reply.status_code for reply in replies] == [504] * 15
    assert not backlog.done()
    before = total(near, "padserve_batch_tokens_sum"), total(near, "padserve_queue_tokens")
    settle(near)
    ran = total(near, "padserve_batch_tokens_sum") - before[0]
    assert backlog.result(60).status_code == 200
    assert before[1] <= BACKLOG_ITEMS * 78, "requests past their deadline are still queued"
    assert ran <= BACKLOG_ITEMS * 78 + 3, "requests past their deadline were run all the same"


def test_an_interactive_request_overtakes_the_bulk(near: httpx.Client, backlog: "Future[httpx.Response]") -> None:
    served(near.post("/classify", json=body(TEXT, priority="interactive")), 1)
    assert not backlog.done(), "the bulk request was finished before the interactive one"


def test_bulk_is_not_starved(busy: Server, near: httpx.Client) -> None:
    del near
    bodies = [body([TEXT] * 4, priority="bulk")] + [body(TEXT, priority="interactive") for _ in range(150)]
    replies = asyncio.run(flood(busy, bodies))
    assert Counter(reply.status_code for reply in replies) == {200: 151}
