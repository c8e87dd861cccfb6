"""Server-sent events of a generation. How they are worded is for a `Wording`: ours is below, adapters have theirs."""

from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec
from litestar.response import Stream
from litestar.types import Receive, Scope

from padserve.errors import InternalError, PadserveError
from padserve.http.disconnect import while_connected
from padserve.http.exchange import Exchange
from padserve.http.problems import problem_of
from padserve.service.service import Reply
from padserve.tasks.generating import EndEvent, TokenEvent

encode_json = msgspec.json.Encoder().encode
Event = TokenEvent | EndEvent | Reply
Events = AsyncIterator[Event]


class Wording(Protocol):
    """What the lines of a stream are."""

    def event(self, event: Event) -> bytes:
        """Empty where there is nothing to say."""

    def error(self, problem: dict[str, Any]) -> bytes:
        """``problem``: a problem object, in place of all that would follow."""


class NativeWording:
    """``token`` as they come, then ``done``, or ``error`` in its place."""

    def event(self, event: Event) -> bytes:
        if isinstance(event, TokenEvent):
            return _named("token", event)
        if isinstance(event, EndEvent):
            return b""
        done: dict[str, Any] = {
            "model": event.model,
            **msgspec.to_builtins(event.results[0]),
            "usage": {"input_tokens": event.usage.input_tokens, "output_tokens": event.usage.output_tokens},
        }
        return _named("done", done)

    def error(self, problem: dict[str, Any]) -> bytes:
        return _named("error", problem)


def _named(name: str, data: Any) -> bytes:
    return b"event: " + name.encode() + b"\n" + data_line(data)


def data_line(data: Any) -> bytes:
    return b"data: " + encode_json(data) + b"\n\n"


async def stream_response(
    events: Events, scope: Scope, receive: Receive, exchange: Exchange, wording: Wording
) -> Stream:
    """The reply to a request that streams. What fails before its first event is an ordinary error.

    Errors: `PadserveError`.
    """
    try:
        first = await while_connected(anext(events), receive)
    except BaseException:
        await _close(events)
        raise
    return Stream(
        _lines(first, events, scope, exchange, wording),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _lines(
    first: Event, events: Events, scope: Scope, exchange: Exchange, wording: Wording
) -> AsyncIterator[bytes]:
    """The last event is a `Reply`, the first is none."""
    try:
        yield wording.event(first)
        async for event in events:
            if isinstance(event, Reply):
                exchange.model, exchange.tokens, exchange.timings = event.model, event.usage.input_tokens, event.timings
            if line := wording.event(event):
                yield line
    except PadserveError as error:
        yield wording.error(problem_of(error, scope))
    except Exception as error:
        yield wording.error(problem_of(InternalError(f"the stream failed ({type(error).__name__})"), scope))
        raise
    finally:
        await _close(events)


async def _close(events: Events) -> None:
    close = getattr(events, "aclose", None)
    if close is not None:
        await close()
