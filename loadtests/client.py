"""A light closed-loop HTTP client: N connections, each sends its next request when its reply has come.

With ``--think`` each waits before that, at random; with ``--tokens`` replies are event streams of that many tokens.

Runs as a process of its own, so that it shares no interpreter lock with a server.

    python loadtests/client.py --url http://127.0.0.1:8000/embed --bodies bodies.jsonl --clients 32 --seconds 10
    python loadtests/client.py --url http://127.0.0.1:8000/embed --bodies bodies.jsonl --clients 1 --count 500
"""

import argparse
import asyncio
import importlib.util
import json
import math
import random
import sys
import time
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from loadtests.http1 import LAST_CHUNK, Reply, parsed, prepared
from loadtests.streams import Stream, Streams, fault, millis

RECONNECT_S = 0.1


@dataclass(frozen=True, slots=True)
class Measured:
    """Good replies that came within the measured time, and their latencies in milliseconds.

    ``errors`` counts every other outcome from the first request on, warm-up included; ``first_error`` describes one.
    ``cpu_ms``: the client's own processor time for a request. Of streams (`streams.py`): tokens a second, and
    milliseconds to the first token and from one to the next.
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
    tokens_per_s: float | None = None
    first_p50_ms: float | None = None
    first_p99_ms: float | None = None
    token_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """When a run ends: at ``until`` (`time.perf_counter`), or once ``count`` requests are sent.

    Only replies from ``measure_from`` on are measured. A reply that takes longer than ``timeout_s`` is an error.
    Before a request a client waits ``think_s`` seconds on the average, exponentially distributed. ``tokens``: of each
    reply, which then is a stream of events; 0 when it is none. ``stagger_s``: clients start at random within it, or
    those whose replies are equally long would stay in step.
    """

    measure_from: float = 0.0
    until: float = math.inf
    count: float = math.inf
    timeout_s: float = 60.0
    think_s: float = 0.0
    tokens: int = 0
    stagger_s: float = 0.0

    def measured(self, now: float) -> bool:
        return self.measure_from <= now <= self.until


class Connection(asyncio.Protocol):
    """Requests one after the other, until the server closes or the run ends. Callbacks alone: a task costs more."""

    def __init__(self, load: "Load") -> None:
        self.load = load
        self.closed = asyncio.get_running_loop().create_future()
        self.started: float | None = None
        self.buffer, self.stream = b"", Stream()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self.think()

    def think(self) -> None:
        if pause := self.load.pause():
            asyncio.get_running_loop().call_later(pause, self.send)
        else:
            self.send()

    def send(self) -> None:
        if self.transport.is_closing():
            return
        if self.load.done():
            self.transport.close()
            return
        request = self.load.take()
        self.started = time.perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.buffer = self.buffer + data if self.buffer else data
        limits = self.load.limits
        if limits.tokens:
            now = time.perf_counter()
            self.stream.feed(data, now, limits.measured(now))
            if self.stream.events and not self.buffer.endswith(LAST_CHUNK):
                return  # read it once, not with every token
        try:
            reply = parsed(self.buffer)
        except ValueError as error:
            self.abort(f"not an HTTP reply: {error}")
            return
        if reply is None or self.started is None:
            return
        self.load.record(self.started, time.perf_counter(), reply, self.stream)
        self.started, self.buffer, self.stream = None, b"", Stream()
        if reply.stays:
            self.think()
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
        self.streams = Streams(limits.tokens)
        self.random = random.Random(0)
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
        await asyncio.sleep(self.random.uniform(0.0, self.limits.stagger_s))
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

    def pause(self) -> float:
        return self.random.expovariate(1 / self.limits.think_s) if self.limits.think_s else 0.0

    def take(self) -> bytes:
        self.sent += 1
        return self.requests[(self.sent - 1) % len(self.requests)]

    def record(self, started: float, ended: float, reply: Reply, stream: Stream) -> None:
        measured = self.limits.measured(ended)
        if not 200 <= reply.status < 300:
            self.fail(f"status {reply.status}: {reply.body[:200].decode(errors='replace')}")
            return
        if self.limits.tokens:
            if reason := fault(reply.body, stream):
                self.fail(reason)
                return
            self.streams.add(stream, started, ended, measured)
        if measured:
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
    think_s: float = 0.0,
    tokens: int = 0,
    stagger_s: float = 0.0,
) -> Measured:
    """Load ``url`` with ``count`` requests, or for ``seconds`` after ``warm_up_s``. Errors: `ValueError` unless one."""
    if (seconds is None) == (count is None) or not bodies:
        raise ValueError("give bodies, and either seconds or a count")
    start = time.perf_counter() + (warm_up_s if count is None else 0.0)
    until = math.inf if seconds is None else start + seconds
    most = math.inf if count is None else count
    limits = Limits(start, until, most, timeout_s, think_s, tokens, stagger_s)
    load = Load(url, prepared(url, bodies, headers), limits)
    cpu = time.process_time()
    # The watch ends what is overdue; the outer bound is for a fault of the client's own.
    async with asyncio.timeout(None if seconds is None else warm_up_s + seconds + 2 * timeout_s):
        await load.run(clients)
    cpu = time.process_time() - cpu
    return summary(load, clients, seconds if seconds is not None else time.perf_counter() - start, cpu)


def summary(load: Load, clients: int, seconds: float, cpu_s: float) -> Measured:
    return Measured(
        clients,
        len(load.latencies),
        load.errors,
        load.first_error,
        round(seconds, 3),
        round(len(load.latencies) / seconds, 2),
        *(millis(load.latencies, percent) for percent in (50, 90, 99)),
        round(1000 * cpu_s / max(load.sent, 1), 4),
        **(load.streams.figures(seconds) if load.limits.tokens else {}),
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
    parser.add_argument("--think", type=float, default=0.0, help="mean seconds before each request, at random")
    parser.add_argument("--tokens", type=int, default=0, help="of each reply, a stream of events")
    parser.add_argument("--stagger", type=float, default=0.0, help="seconds within which clients start, at random")
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
        options.think,
        options.tokens,
        options.stagger,
    )
    measured = run(work)
    print(json.dumps(asdict(measured)))
    return 1 if measured.errors else 0


if __name__ == "__main__":
    sys.exit(main())
