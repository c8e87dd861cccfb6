"""A light closed-loop HTTP client: N connections, each sends its next request when its reply has come.

Runs as a process of its own, so that it shares no interpreter lock with a server.

    python loadtests/client.py --url http://127.0.0.1:8000/embed --bodies bodies.jsonl --clients 32 --seconds 10
    python loadtests/client.py --url http://127.0.0.1:8000/embed --bodies bodies.jsonl --clients 1 --count 500
"""

import argparse
import asyncio
import importlib.util
import json
import math
import statistics
import sys
import time
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

RECONNECT_S = 0.1


@dataclass(frozen=True, slots=True)
class Measured:
    """Good replies that came within the measured time, and their latencies in milliseconds.

    ``errors`` counts every other outcome from the first request on, warm-up included; ``first_error`` describes one.
    ``cpu_ms``: the client's own processor time for a request.
    """

    clients: int
    requests: int
    errors: int
    first_error: str | None
    seconds: float
    requests_per_s: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    cpu_ms: float


@dataclass(frozen=True, slots=True)
class Limits:
    """When a run ends: at ``until`` (`time.perf_counter`), or once ``count`` requests are sent.

    Only replies from ``measure_from`` on are measured. A reply that takes longer than ``timeout_s`` is an error.
    """

    measure_from: float = 0.0
    until: float = math.inf
    count: float = math.inf
    timeout_s: float = 60.0


def prepared(url: str, bodies: Sequence[bytes], headers: Sequence[str] = ()) -> list[bytes]:
    """Whole HTTP/1.1 POST requests, ready to be written. ``headers``: ``Name: value``."""
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = [f"POST {target} HTTP/1.1", f"Host: {parts.netloc}", *headers]
    if not any(header.lower().startswith("content-type:") for header in headers):
        lines.append("Content-Type: application/json")
    head = "\r\n".join([*lines, "Content-Length: "]).encode()
    return [head + str(len(body)).encode() + b"\r\n\r\n" + body for body in bodies]


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes
    stays: bool


def parsed(buffer: bytes) -> Reply | None:
    """A whole HTTP/1.1 reply, None while some of it is missing. Errors: `ValueError` when it is none."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = buffer[: end + 2].lower()
    length = head.find(b"\r\ncontent-length:")
    if length >= 0:
        size = int(head[length + 17 : head.index(b"\r\n", length + 2)])
        body = buffer[end + 4 : end + 4 + size] if len(buffer) >= end + 4 + size else None
    else:
        body = _chunks(buffer, end + 4)
    return None if body is None else Reply(int(head[9:12]), body, b"\r\nconnection: close\r\n" not in head)


def _chunks(buffer: bytes, at: int) -> bytes | None:
    body = b""
    while (line := buffer.find(b"\r\n", at)) >= 0:
        size = int(buffer[at:line], 16)
        at = line + 2 + size + 2
        if len(buffer) < at:
            return None
        if size == 0:
            return body
        body += buffer[line + 2 : line + 2 + size]
    return None


class Connection(asyncio.Protocol):
    """Requests one after the other, until the server closes or the run ends. Callbacks alone: a task costs more."""

    def __init__(self, load: "Load") -> None:
        self.load = load
        self.closed = asyncio.get_running_loop().create_future()
        self.started: float | None = None
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self.send()

    def send(self) -> None:
        if self.load.done():
            self.transport.close()
            return
        request = self.load.take()
        self.started = time.perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.buffer = self.buffer + data if self.buffer else data
        try:
            reply = parsed(self.buffer)
        except ValueError as error:
            self.abort(f"not an HTTP reply: {error}")
            return
        if reply is None or self.started is None:
            return
        self.load.record(self.started, time.perf_counter(), reply)
        self.started, self.buffer = None, b""
        if reply.stays:
            self.send()
        else:
            self.transport.close()

    def abort(self, reason: str) -> None:
        self.started = None
        self.load.fail(reason)
        self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if self.started is not None:
            self.load.fail(f"the connection was lost: {error!r}")
        self.closed.set_result(None)


class Load:
    """Clients that take turns through the requests until the limits are reached."""

    def __init__(self, url: str, requests: Sequence[bytes], limits: Limits) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.requests, self.limits = requests, limits
        self.open: set[Connection] = set()
        self.sent = 0
        self.latencies: list[float] = []
        self.errors = 0
        self.first_error: str | None = None

    async def run(self, clients: int) -> None:
        watch = asyncio.create_task(self.watch())
        try:
            await asyncio.gather(*(self.client() for _ in range(clients)))
        finally:
            watch.cancel()

    async def client(self) -> None:
        loop = asyncio.get_running_loop()
        while not self.done():
            try:
                _, connection = await loop.create_connection(lambda: Connection(self), self.host, self.port)
            except OSError as error:
                self.take()
                self.fail(repr(error))
                await asyncio.sleep(RECONNECT_S)
                continue
            self.open.add(connection)
            await connection.closed
            self.open.discard(connection)

    async def watch(self) -> None:
        """Give up replies that take too long."""
        while True:
            await asyncio.sleep(min(self.limits.timeout_s / 4, 1.0))
            oldest = time.perf_counter() - self.limits.timeout_s
            for connection in list(self.open):
                if connection.started is not None and connection.started < oldest:
                    connection.abort(f"no reply within {self.limits.timeout_s:g} s")

    def done(self) -> bool:
        return self.sent >= self.limits.count or time.perf_counter() >= self.limits.until

    def take(self) -> bytes:
        self.sent += 1
        return self.requests[(self.sent - 1) % len(self.requests)]

    def record(self, started: float, ended: float, reply: Reply) -> None:
        if not 200 <= reply.status < 300:
            self.fail(f"status {reply.status}: {reply.body[:200].decode(errors='replace')}")
        elif self.limits.measure_from <= ended <= self.limits.until:
            # By the time of its end alone: were the requests lost that are under way at either end of the measured
            # time, each client would lose one, and the slower server the greater share.
            self.latencies.append(ended - started)

    def fail(self, reason: str) -> None:
        self.errors += 1
        self.first_error = self.first_error or reason


async def measure(
    url: str,
    bodies: Sequence[bytes],
    clients: int,
    seconds: float | None = None,
    count: int | None = None,
    warm_up_s: float = 0.0,
    headers: Sequence[str] = (),
    timeout_s: float = 60.0,
) -> Measured:
    """Load ``url`` with ``count`` requests, or for ``seconds`` after ``warm_up_s``. Errors: `ValueError` unless one."""
    if (seconds is None) == (count is None) or not bodies:
        raise ValueError("give bodies, and either seconds or a count")
    start = time.perf_counter() + (warm_up_s if count is None else 0.0)
    until = math.inf if seconds is None else start + seconds
    limits = Limits(start, until, math.inf if count is None else count, timeout_s)
    load = Load(url, prepared(url, bodies, headers), limits)
    cpu = time.process_time()
    # The watch ends what is overdue; the outer bound is for a fault of the client's own.
    async with asyncio.timeout(None if seconds is None else warm_up_s + seconds + 2 * timeout_s):
        await load.run(clients)
    cpu = time.process_time() - cpu
    return summary(load, clients, seconds if seconds is not None else time.perf_counter() - start, cpu)


def summary(load: Load, clients: int, seconds: float, cpu_s: float) -> Measured:
    latencies = load.latencies or [math.nan]
    ranks = statistics.quantiles(latencies, n=100, method="inclusive") if len(latencies) > 1 else latencies * 99
    return Measured(
        clients,
        len(load.latencies),
        load.errors,
        load.first_error,
        round(seconds, 3),
        round(len(load.latencies) / seconds, 2),
        round(1000 * ranks[49], 3),
        round(1000 * ranks[89], 3),
        round(1000 * ranks[98], 3),
        round(1000 * cpu_s / max(load.sent, 1), 4),
    )


def run(work: Coroutine[Any, Any, Measured]) -> Measured:
    """Run on uvloop where it is installed."""
    factory = None
    if importlib.util.find_spec("uvloop"):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--bodies", required=True, type=Path, help="one body a line")
    parser.add_argument("--clients", type=int, default=32)
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument("--seconds", type=float)
    ends.add_argument("--count", type=int, help="requests in all")
    parser.add_argument("--warm-up", type=float, default=2.0, help="seconds before measuring; none with --count")
    parser.add_argument("--header", action="append", default=[], help="'Name: value', may be repeated")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds that a reply may take")
    options = parser.parse_args()
    seconds = 10.0 if options.seconds is None and options.count is None else options.seconds
    bodies = options.bodies.read_bytes().splitlines()
    work = measure(
        options.url,
        bodies,
        options.clients,
        seconds,
        options.count,
        options.warm_up,
        options.header,
        options.timeout,
    )
    measured = run(work)
    print(json.dumps(asdict(measured)))
    return 1 if measured.errors else 0


if __name__ == "__main__":
    sys.exit(main())
