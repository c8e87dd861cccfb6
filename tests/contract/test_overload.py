"""Section 1 under load: 429 and 413, clients that leave, deadlines, priorities; on a server of its own."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.contract.checkpoints import slow_classifier
from tests.contract.metrics import total
from tests.contract.oracles import Oracles
from tests.contract.pending import Pending, sent, wait_for
from tests.contract.replies import describe, labels_close, only, problem, served
from tests.contract.server import Server, launch, write_config

MAX_QUEUE_TOKENS = 40_000
TEXT = "winter " * 76
TOKENS = 78
"""Of the text above, the special ones included."""
BACKLOG_ITEMS = 480
"""A request of 37,440 tokens: a second or two of work."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("slow") / "slow-cls"
    slow_classifier(made)
    return made


@pytest.fixture(scope="module")
def busy(folder: Path, socket_folder: Path) -> Iterator[Server]:
    uds = str(socket_folder / "busy")
    settings = {"uds": uds, "max_queue_tokens": MAX_QUEUE_TOKENS}
    config = write_config(socket_folder / "padserve.toml", settings, [{"name": "slow-cls", "source": folder}])
    running = launch(socket_folder, config, uds=uds)
    try:
        yield running.wait_ready()
    finally:
        code = running.terminate()
    assert code == 0, running.output[-4000:]


@pytest.fixture
def near(busy: Server) -> Iterator[httpx.Client]:
    """A client of the server at rest; it must come to rest again."""
    with busy.client() as client:
        settle(client)
        yield client
        settle(client)


def settle(client: httpx.Client) -> None:
    """Wait until the queue is empty and an ordinary request is served."""
    wait_for(lambda: total(client, "padserve_queue_depth") == 0, "an empty queue")
    only(client.post("/classify", json={"inputs": "music"}))


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
def backlog(busy: Server, near: httpx.Client) -> Iterator[Pending]:
    """A bulk request that keeps the workers busy, already queued; its client leaves at the end."""
    with sent(busy, "/classify", [body([TEXT] * BACKLOG_ITEMS, priority="bulk")]) as (big,):
        wait_for(lambda: total(near, "padserve_queue_depth") > 0, "a queued request")
        yield big


def test_a_flood_is_refused_with_retry_after_and_leaves_no_trace(busy: Server, near: httpx.Client) -> None:
    bodies = [body([TEXT] * (24 + index % 2)) for index in range(48)]
    process = psutil.Process(busy.process.pid)
    resident: list[int] = []
    for _ in range(3):
        replies = asyncio.run(flood(busy, bodies))
        statuses = Counter(reply.status_code for reply in replies)
        odd = [describe(reply) for reply in replies if reply.status_code not in (200, 429)]
        assert set(statuses) == {200, 429}, odd or statuses
        for given, reply in zip(bodies, replies, strict=True):
            if reply.status_code == 429:
                problem(reply, 429, "queue_full")
                assert int(reply.headers["retry-after"]) >= 1
            else:
                served(reply, len(given["inputs"]))
        settle(near)
        resident.append(process.memory_info().rss)
    assert resident[-1] - resident[0] < 64 * 2**20, resident
    assert near.get("/readyz").status_code == 200


def test_refusals_are_counted_by_reason(busy: Server, near: httpx.Client, backlog: Pending) -> None:
    before = total(near, "padserve_rejected_total", reason="queue_full")
    statuses = Counter(reply.status_code for reply in asyncio.run(flood(busy, [body([TEXT] * 460) for _ in range(3)])))
    assert statuses == {429: 3}
    assert total(near, "padserve_rejected_total", reason="queue_full") - before == 3
    assert not backlog.answered()


def test_a_single_input_and_a_list_of_one_are_admitted_alike(busy: Server, backlog: Pending) -> None:
    """Single input gets 429, the same input as a list of one never."""
    bodies = [body(TEXT) if index % 2 else body([TEXT]) for index in range(400)]
    replies = asyncio.run(flood(busy, bodies))
    for parity in (0, 1):
        statuses = Counter(reply.status_code for reply in replies[parity::2])
        assert set(statuses) == {200, 429}, statuses


def test_items_count_and_not_requests(near: httpx.Client, backlog: Pending) -> None:
    """Batch counted as requests, not items: out of memory."""
    problem(near.post("/classify", json=body([TEXT] * 460)), 429, "queue_full")
    served(near.post("/classify", json=body([TEXT])), 1)
    assert not backlog.answered()


def test_one_request_larger_than_the_whole_queue(near: httpx.Client) -> None:
    reply = near.post("/classify", json=body([TEXT] * 600))
    details = problem(reply, 413, "too_many_tokens")
    assert str(MAX_QUEUE_TOKENS) in details["detail"].replace(",", "").replace("_", "")
    assert "retry-after" not in reply.headers


def test_the_results_are_right_after_all_that(near: httpx.Client, folder: Path) -> None:
    texts = ["a dark winter", TEXT, "music"]
    oracle = Oracles({"slow-cls": folder})
    for text, entry in zip(texts, served(near.post("/classify", json=body(texts, activation="none")), 3), strict=True):
        labels_close(entry, oracle.classified("slow-cls", text))


@pytest.mark.parametrize("wave", [1, 2])
def test_200_clients_that_leave_take_their_work_with_them(busy: Server, near: httpx.Client, wave: int) -> None:
    """Cancelled while queued, and still executed, or the batch hangs. Two waves of 100, queued behind other work."""
    ran = total(near, "padserve_batch_tokens_sum")
    gone = total(near, "padserve_requests_total", status="499")
    tokenized = total(near, "padserve_tokenize_seconds_count")
    with sent(busy, "/classify", [body([TEXT] * 400, priority="bulk")]) as (earlier,):
        wait_for(lambda: total(near, "padserve_queue_depth") > 0, "a queued request")
        with sent(busy, "/classify", [body(TEXT, priority="bulk") for _ in range(100)]):
            wait_for(lambda: total(near, "padserve_tokenize_seconds_count") == tokenized + 101, "all of them queued")
            assert not earlier.answered(), "the work ahead of them was too short for this test to mean much"
        wait_for(lambda: total(near, "padserve_requests_total", status="499") == gone + 100, "all of them gone")
        status, reply = earlier.reply()
    assert (status, len(reply["results"])) == (200, 400)
    assert total(near, "padserve_queue_depth") == 0
    assert total(near, "padserve_batch_tokens_sum") - ran == 400 * TOKENS, "work that nobody waited for was run"


@pytest.mark.parametrize(("field", "header"), [(30, None), (None, "30"), (30, "60000"), (60_000, "30"), (30, "30")])
def test_the_smaller_deadline_ends_a_request(
    near: httpx.Client, backlog: Pending, field: int | None, header: str | None
) -> None:
    fields = {} if field is None else {"timeout_ms": field}
    headers = {} if header is None else {"X-Request-Timeout-Ms": header}
    reply = near.post("/classify", json=body([TEXT] * 5, priority="bulk", **fields), headers=headers)
    problem(reply, 504, "deadline_exceeded")
    assert not backlog.answered()


def test_generous_deadlines_do_nothing(near: httpx.Client) -> None:
    reply = near.post("/classify", json=body(TEXT, timeout_ms=60_000), headers={"X-Request-Timeout-Ms": "50000"})
    served(reply, 1)


def test_work_past_its_deadline_is_dropped(busy: Server, near: httpx.Client, backlog: Pending) -> None:
    """Retry storm: the server works through dead requests."""
    before = total(near, "padserve_batch_tokens_sum")
    replies = asyncio.run(flood(busy, [body(TEXT, priority="bulk", timeout_ms=40) for _ in range(15)]))
    assert [reply.status_code for reply in replies] == [504] * 15
    assert not backlog.answered()
    assert total(near, "padserve_queue_tokens") <= BACKLOG_ITEMS * TOKENS, "the dead are still queued"
    status, reply = backlog.reply()
    assert (status, len(reply["results"])) == (200, BACKLOG_ITEMS)
    assert total(near, "padserve_batch_tokens_sum") - before <= BACKLOG_ITEMS * TOKENS, "the dead were run all the same"


def test_an_interactive_request_overtakes_the_bulk(near: httpx.Client, backlog: Pending) -> None:
    served(near.post("/classify", json=body(TEXT, priority="interactive")), 1)
    assert not backlog.answered(), "the bulk request was finished before the interactive one"


def test_bulk_is_not_starved(busy: Server, near: httpx.Client) -> None:
    bodies = [body([TEXT] * 4, priority="bulk")] + [body(TEXT, priority="interactive") for _ in range(150)]
    replies = asyncio.run(flood(busy, bodies))
    assert Counter(reply.status_code for reply in replies) == {200: 151}
