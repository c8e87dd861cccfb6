"""Streams of tokens: what the client makes of replies that come in parts, fail on the way, or are none."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from loadtests.client import Measured, measure
from loadtests.streams import Stream, Streams

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = b'data: {"text": "a"}\n\n'


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@contextlib.asynccontextmanager
async def server(parts: Sequence[bytes], pause_s: float) -> AsyncIterator[str]:
    """Answers every request with the same parts, with a pause before each but the first."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(EOFError, ConnectionError), contextlib.closing(writer):
            while True:
                await reader.readuntil(b"\r\n\r\nx")
                for at, part in enumerate(parts):
                    await asyncio.sleep(pause_s if at else 0)
                    writer.write(part)
                    await writer.drain()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
    finally:
        listening.close()
        await listening.wait_closed()


async def streamed(parts: Sequence[bytes], tokens: int, pause_s: float = 0.0) -> Measured:
    async with server(parts, pause_s) as url:
        return await measure(url, [b"x"], clients=1, count=4, tokens=tokens)


async def test_times_of_the_first_token_and_from_one_to_the_next() -> None:
    parts = [HEAD, chunk(TOKEN), chunk(TOKEN), chunk(TOKEN) + b"0\r\n\r\n"]
    measured = await streamed(parts, tokens=3, pause_s=0.05)
    assert (measured.requests, measured.errors) == (4, 0)
    assert measured.first_p50_ms == pytest.approx(50, abs=20)
    assert measured.token_ms == pytest.approx(50, abs=20)
    assert measured.tokens_per_s == pytest.approx(12 / measured.seconds, rel=0.05)


async def test_a_token_cut_between_two_packets_and_an_end_of_its_own() -> None:
    whole = HEAD + chunk(TOKEN * 2) + chunk(TOKEN) + b"0\r\n\r\n"
    measured = await streamed([whole[:-40], whole[-40:-3], whole[-3:]], tokens=3, pause_s=0.01)
    assert (measured.requests, measured.errors) == (4, 0)


@pytest.mark.parametrize(
    "body", [b'event: error\ndata: {"code": "x"}\n\n', b'data: {"error": {"message": "x"}}\n\n', b'{"tokens": []}']
)
async def test_a_fault_within_a_stream_and_a_reply_that_is_none_are_errors(body: bytes) -> None:
    measured = await streamed([HEAD + chunk(body) + b"0\r\n\r\n"], tokens=3)
    assert (measured.requests, measured.errors) == (0, 4)


def test_tokens_of_a_reply_count_as_far_as_they_came_in_the_measured_time() -> None:
    streams, stream = Streams(64), Stream()
    for at in range(32):  # two tokens an event, a quarter of them in time
        stream.feed(TOKEN, float(at), at >= 24)
    streams.add(stream, -1.0, 31.0, measured=True)
    assert streams.figures(2.0) == {
        "tokens_per_s": 8.0,
        "first_p50_ms": 1000,
        "first_p99_ms": 1000,
        "token_ms": 492.063,
    }


async def test_clients_pause_before_each_request() -> None:
    async with server([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"], 0.0) as url:
        paused = await measure(url, [b"x"], clients=1, count=20, think_s=0.02)
        started = await measure(url, [b"x"], clients=1, count=1, stagger_s=1.0)
    assert paused.requests == 20
    assert 0.1 < paused.seconds < 2.0
    assert paused.p99_ms < 100
    assert started.seconds == pytest.approx(0.844, abs=0.1)  # the seed's first number
