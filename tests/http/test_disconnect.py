"""Clients that leave, over a real server on a Unix socket."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from litestar import Litestar

from padserve.errors import ClientClosed
from padserve.http.disconnect import while_connected
from padserve.telemetry.metrics import Metrics

pytestmark = pytest.mark.asyncio
HEAD = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
BODY = b'{"inputs":"a"}'


@contextlib.asynccontextmanager
async def serving(app: Litestar, folder: Path) -> AsyncIterator[str]:
    """A server in this process; yields the path of its socket."""
    uds = str(folder / "s")
    config = uvicorn.Config(app, uds=uds, log_config=None, access_log=False, lifespan="on")
    server = uvicorn.Server(config)
    running = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.005)
    yield uds
    server.should_exit = True
    await running


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def count(metrics: Metrics, status: int) -> float:
    total = 0.0
    for sample in next(f for f in metrics.registry.collect() if f.name == "padserve_requests").samples:
        if sample.name.endswith("_total") and sample.labels["status"] == str(status):
            total += sample.value
    return total


async def test_a_client_that_leaves_cancels_its_work(
    make_app: Callable[..., Litestar],
    service: Any,
    metrics: Metrics,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "padserve.access")
    service.wait = asyncio.Event()
    async with serving(make_app(), tmp_path) as uds:
        _, writer = await asyncio.open_unix_connection(uds)
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
        await service.started.wait()
        writer.close()
        await eventually(lambda: count(metrics, 499) == 1)
        assert (service.running, service.cancelled) == (0, 1)
        service.wait = None
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=uds), base_url="http://x") as client:
            assert (await client.post("/echo", content=BODY)).status_code == 200
    line = vars(next(record for record in caplog.records if record.message == "request"))
    assert (line["status"], line["error"]) == (499, "client_closed")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_client_that_leaves_within_its_body(
    make_app: Callable[..., Litestar], service: Any, metrics: Metrics, tmp_path: Path
) -> None:
    async with serving(make_app(), tmp_path) as uds:
        _, writer = await asyncio.open_unix_connection(uds)
        writer.write(HEAD + b"Content-Length: 1000\r\n\r\n" + BODY)
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.close()
        await eventually(lambda: count(metrics, 499) == 1)
    assert not service.requests


async def test_many_clients_leave_and_others_are_served(
    make_app: Callable[..., Litestar], service: Any, metrics: Metrics, tmp_path: Path
) -> None:
    service.wait = asyncio.Event()
    async with serving(make_app(), tmp_path) as uds:
        transport = httpx.AsyncHTTPTransport(uds=uds)
        async with httpx.AsyncClient(transport=transport, base_url="http://x", timeout=10) as client:
            stay = [asyncio.create_task(client.post("/echo", json={"inputs": str(number)})) for number in range(10)]
            leave = [asyncio.create_task(client.post("/echo", json={"inputs": "gone"})) for _ in range(20)]
            await eventually(lambda: service.running == 30)
            for task in leave:
                task.cancel()
            await eventually(lambda: service.running == 10)
            service.wait.set()
            replies = await asyncio.gather(*stay)
    assert [reply.json()["results"][0]["text"] for reply in replies] == [str(number) for number in range(10)]
    assert (service.cancelled, count(metrics, 499), count(metrics, 200)) == (20, 20, 10)


async def test_chunked_body_over_the_limit_on_the_wire(
    make_app: Callable[..., Litestar], service: Any, tmp_path: Path
) -> None:
    async with serving(make_app(), tmp_path) as uds:
        reader, writer = await asyncio.open_unix_connection(uds)
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1000\r\n%s\r\n" % (b"a" * 4096) + b"1\r\na\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
        writer.close()
    assert not service.requests


async def test_keep_alive_connection_serves_many(
    make_app: Callable[..., Litestar], service: Any, metrics: Metrics, tmp_path: Path
) -> None:
    """The watcher of one request must not eat the messages of the next."""
    async with serving(make_app(), tmp_path) as uds:
        transport = httpx.AsyncHTTPTransport(uds=uds, limits=httpx.Limits(max_connections=1))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            for number in range(20):
                reply = await client.post("/echo", json={"inputs": str(number)})
                assert reply.json()["results"][0]["text"] == str(number)
                assert (await client.head("/models")).content == b""
    assert count(metrics, 200) == 40


async def never() -> Any:
    await asyncio.Event().wait()


async def leaves() -> Any:
    return {"type": "http.disconnect"}


async def test_result_and_errors_pass_through() -> None:
    async def answer() -> int:
        return 5

    async def fail() -> int:
        raise KeyError("x")

    assert await while_connected(answer(), never) == 5
    with pytest.raises(KeyError):
        await while_connected(fail(), never)


async def test_disconnect_leaves_the_task_uncancelled() -> None:
    with pytest.raises(ClientClosed):
        await while_connected(never(), leaves)
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0
    await asyncio.sleep(0)


async def test_cancellation_from_outside_is_no_disconnect() -> None:
    task = asyncio.create_task(while_connected(never(), never))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_deadline_within_is_no_disconnect() -> None:
    async def work() -> None:
        async with asyncio.timeout(0.01):
            await never()

    with pytest.raises(TimeoutError):
        await while_connected(work(), never)
