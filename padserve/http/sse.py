"""Server-sent events of a generation: ``token`` as they come, then ``done``, or ``error`` in its place."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from litestar.response import Stream
from litestar.types import Receive, Scope

from padserve.errors import InternalError, PadserveError
from padserve.http.disconnect import while_connected
from padserve.http.exchange import Exchange
from padserve.http.problems import problem_of
from padserve.service.service import Reply
from padserve.tasks.generating import TokenEvent

encode_json = msgspec.json.Encoder().encode
Events = AsyncIterator[TokenEvent | Reply]


async def stream_response(events: Events, scope: Scope, receive: Receive, exchange: Exchange) -> Stream:
    """The reply to a request that streams. What fails before its first event is an ordinary error.

    Errors: `PadserveError`.
    """
    try:
        first = await while_connected(anext(events), receive)
    except BaseException:
        await _close(events)
        raise
    return Stream(
        _lines(first, events, scope, exchange),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _lines(first: TokenEvent | Reply, events: Events, scope: Scope, exchange: Exchange) -> AsyncIterator[bytes]:
    try:
        yield _line(first, exchange)
        async for event in events:
            yield _line(event, exchange)
    except PadserveError as error:
        yield _event("error", problem_of(error, scope))
    except Exception as error:
        yield _event("error", problem_of(InternalError(f"the stream failed ({type(error).__name__})"), scope))
        raise
    finally:
        await _close(events)


def _line(event: TokenEvent | Reply, exchange: Exchange) -> bytes:
    if isinstance(event, TokenEvent):
        return _event("token", event)
    exchange.model, exchange.tokens, exchange.timings = event.model, event.usage.input_tokens, event.timings
    done: dict[str, Any] = {
        "model": event.model,
        **msgspec.to_builtins(event.results[0]),
        "usage": {"input_tokens": event.usage.input_tokens, "output_tokens": event.usage.output_tokens},
    }
    return _event("done", done)


def _event(name: str, data: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + encode_json(data) + b"\n\n"


async def _close(events: Events) -> None:
    close = getattr(events, "aclose", None)
    if close is not None:
        await close()
