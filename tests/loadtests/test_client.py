"""The client against a server that counts, splits, closes, fails or hangs as asked."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from loadtests.client import Measured, measure
from loadtests.http1 import parsed

GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
Answer = Callable[[bytes], bytes | None]


class Stub:
    """Answers by what it was sent; closes after a reply that says so, never answers where that is None."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(EOFError, ConnectionError), contextlib.closing(writer):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(size))
                reply = self.answer(self.bodies[-1])
                for part in [] if reply is None else [reply[:20], reply[20:]]:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0)
                if reply is not None and b"connection: close" in reply.lower():
                    return


@contextlib.asynccontextmanager
async def stub(answer: Answer) -> AsyncIterator[tuple[Stub, str]]:
    served = Stub(answer)
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    try:
        yield served, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


async def counted(answer: Answer, count: int = 20, clients: int = 3) -> tuple[Stub, Measured]:
    async with stub(answer) as (served, base):
        bodies = [str(number).encode() for number in range(count)]
        return served, await measure(f"{base}/any?x=1", bodies, clients, count=count, timeout_s=0.4)


async def test_a_count_sends_each_body_once_to_the_path_with_its_query() -> None:
    served, measured = await counted(lambda body: GOOD)
    assert sorted(served.bodies, key=int) == [str(number).encode() for number in range(20)]
    assert {head.split(b"\r\n")[0] for head in served.heads} == {b"POST /any?x=1 HTTP/1.1"}
    assert (measured.requests, measured.errors) == (20, 0)
    assert 0 < measured.p50_ms <= measured.p90_ms <= measured.p99_ms


async def test_within_a_time_it_counts_what_the_server_counted() -> None:
    async with stub(lambda body: GOOD) as (served, base):
        measured = await measure(base, [b"x"], clients=4, seconds=0.3)
    assert measured.errors == 0
    assert 0 <= len(served.bodies) - measured.requests <= 4  # under way when time was up
    assert measured.requests_per_s == pytest.approx(measured.requests / 0.3, rel=0.01)


async def test_a_request_that_began_in_the_warm_up_counts_where_it_ends() -> None:
    """Eight at a time, 0.1 s each: 0.5 s holds 40 of them, whatever of them was under way when it began."""

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(EOFError, ConnectionError), contextlib.closing(writer):
            while True:
                await reader.readuntil(b"\r\n\r\nx")
                await asyncio.sleep(0.1)
                writer.write(GOOD)

    server = await asyncio.start_server(slow, "127.0.0.1", 0)
    base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    measured = await measure(base, [b"x"], clients=8, seconds=0.5, warm_up_s=0.15)
    server.close()
    await server.wait_closed()
    assert measured.requests == 40


async def test_replies_that_are_not_good_are_errors_and_not_measured() -> None:
    bad = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 4\r\n\r\nfull"
    _, measured = await counted(lambda body: bad if int(body) % 2 else GOOD)
    assert (measured.requests, measured.errors) == (10, 10)
    assert measured.first_error == "status 429: full"


async def test_a_connection_that_the_server_closes_is_made_again() -> None:
    closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    _, measured = await counted(lambda body: closing)
    assert (measured.requests, measured.errors) == (20, 0)


async def test_a_reply_that_does_not_come_is_an_error() -> None:
    _, measured = await counted(lambda body: None if body == b"7" else GOOD)
    assert (measured.requests, measured.errors) == (19, 1)
    assert measured.first_error == "no reply within 0.4 s"


async def test_a_server_that_is_not_there_is_an_error_for_each_request() -> None:
    async with stub(lambda body: GOOD) as (_, base):
        pass
    measured = await measure(base, [b"x"], clients=2, count=4)
    assert (measured.requests, measured.errors) == (0, 4)
    assert measured.first_error is not None
    assert "Connect" in measured.first_error


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\nhello world",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n",
    ],
)
def test_a_reply_is_whole_only_at_its_last_byte(reply: bytes) -> None:
    assert [parsed(reply[:size]) for size in range(len(reply))] == [None] * len(reply)
    whole = parsed(reply)
    assert whole is not None
    assert (whole.status, whole.body) == (200, b"hello world")


async def test_it_wants_either_seconds_or_a_count() -> None:
    with pytest.raises(ValueError, match="seconds or a count"):
        await measure("http://127.0.0.1:1", [b"x"], clients=1)
