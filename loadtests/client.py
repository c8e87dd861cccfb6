"""A light closed-loop HTTP client: N connections, each sends its next request when its reply has come.

Runs as a process of its own, so that it shares no interpreter lock with a server.

    python loadtests/client.py --url http://127.0.0.1:8000/embed --bodies bodies.jsonl --clients 32 --seconds 10
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Measured:
    """``requests`` within the measured time; latencies in milliseconds."""

    clients: int
    requests: int
    errors: int
    requests_per_s: float
    p50_ms: float
    p90_ms: float
    p99_ms: float


def prepared(url: str, bodies: list[bytes]) -> list[bytes]:
    """Whole HTTP/1.1 requests, ready to be written."""
    parts = urlsplit(url)
    head = f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\nContent-Length: "
    return [head.encode() + str(len(body)).encode() + b"\r\n\r\n" + body for body in bodies]


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> int:
    """Send one request and read its reply. Returns the status."""
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = head.find(b"content-length:")
    if length < 0:
        await _read_chunked(reader)
    else:
        await reader.readexactly(int(head[length + 15 : head.index(b"\r\n", length)]))
    return int(head[9:12])


async def _read_chunked(reader: asyncio.StreamReader) -> None:
    while (size := int(await reader.readline(), 16)) > 0:
        await reader.readexactly(size + 2)
    await reader.readline()


class Load:
    """Clients that take turns through the requests until time is up. Latencies count from ``measure_from`` on."""

    def __init__(self, url: str, requests: list[bytes], measure_from: float, until: float) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.requests, self.measure_from, self.until = requests, measure_from, until
        self.latencies: list[float] = []
        self.errors = 0

    async def client(self, number: int) -> None:
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=2**20)
        turn = number * 7
        while (started := time.perf_counter()) < self.until:
            status = await exchange(reader, writer, self.requests[turn % len(self.requests)])
            turn += 1
            ended = time.perf_counter()
            if started >= self.measure_from and ended <= self.until:
                self.latencies.append(ended - started)
                self.errors += status != 200
        writer.close()


async def measure(url: str, bodies: list[bytes], clients: int, seconds: float, warm_up_s: float = 2.0) -> Measured:
    """Load ``url`` for ``warm_up_s`` and then for the measured ``seconds``."""
    start = time.perf_counter() + warm_up_s
    load = Load(url, prepared(url, bodies), start, start + seconds)
    await asyncio.gather(*(load.client(number) for number in range(clients)))
    ordered = sorted(load.latencies) or [float("nan")]
    ranks = statistics.quantiles(ordered, n=100, method="inclusive") if len(ordered) > 1 else ordered * 99
    return Measured(
        clients,
        len(load.latencies),
        load.errors,
        len(load.latencies) / seconds,
        *(round(1000 * ranks[rank], 2) for rank in (49, 89, 98)),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--bodies", required=True, type=Path, help="one JSON body a line")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--warm-up", type=float, default=2.0)
    options = parser.parse_args()
    bodies = options.bodies.read_bytes().splitlines()
    measured = asyncio.run(measure(options.url, bodies, options.clients, options.seconds, options.warm_up))
    print(json.dumps(asdict(measured)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
