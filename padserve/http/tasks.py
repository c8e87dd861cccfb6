"""One POST route a task, all alike: decode, run, encode."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream
from litestar.types import Scope

from padserve.core import Timings
from padserve.errors import InvalidField
from padserve.http.body import BodyDecoder, check_media_type, read_body
from padserve.http.disconnect import while_connected
from padserve.http.exchange import Exchange, exchange_of, header
from padserve.http.openapi import OPERATION, Operation
from padserve.http.sse import NativeWording, stream_response
from padserve.service.service import Reply, RequestContext, Service
from padserve.tasks.base import Task
from padserve.tasks.generating import GeneratingTask

MAX_TIMEOUT_MS = 86_400_000
TIMEOUT_HEADER = "X-Request-Timeout-Ms"
encode_json = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Shape:
    """Another server's shape of a native route, for JSON objects that have this field."""

    field: str
    request_type: type[msgspec.Struct]
    reply_type: type[msgspec.Struct]
    answer: Callable[[Request[Any, Any, Any], bytes], Awaitable[Response[bytes]]]

    def fits(self, body: bytes) -> bool:
        try:
            return self.field in msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, RecursionError):
            return False


def make_task_route(
    task: Task[Any], service: Service, max_body_bytes: int, shape: Shape | None = None
) -> HTTPRouteHandler:
    """``max_body_bytes``: larger request bodies are refused. ``shape``: bodies that it fits are its."""
    decoder = BodyDecoder(task.request_type)

    async def handle(request: Request[Any, Any, Any]) -> Response[bytes] | Stream:
        scope, receive = request.scope, request.receive
        exchange = exchange_of(scope)
        exchange.task = task.name
        check_media_type(scope)
        timeout_ms = read_timeout_ms(scope)
        body = await read_body(scope, receive, max_body_bytes)
        if shape is not None and shape.fits(body):
            return await shape.answer(request, body)
        decoded = decoder.decode(body)
        exchange.model = decoded.model or ""
        context = RequestContext(exchange.request_id, exchange.received_at, timeout_ms)
        if isinstance(task, GeneratingTask) and decoded.stream:
            events = service.stream(task, decoded, context)
            return await stream_response(events, scope, receive, exchange, NativeWording())
        reply = await while_connected(service.run(task, decoded, context), receive)
        return task_response(reply, exchange)

    other = None if shape is None else (shape.request_type, shape.reply_type)
    operation = Operation(task.summary, "tasks", task.request_type, task.result_type, other_shape=other)
    return post(f"/{task.name}", name=task.name, status_code=200, opt={OPERATION: operation})(handle)


def read_timeout_ms(scope: Scope) -> int | None:
    """The header ``X-Request-Timeout-Ms``. Errors: `InvalidField`."""
    given = header(scope, TIMEOUT_HEADER.lower().encode())
    if given is None:
        return None
    timeout_ms = int(given) if given.isdigit() and len(given) < 10 else 0
    if not 1 <= timeout_ms <= MAX_TIMEOUT_MS:
        message = f"the header {TIMEOUT_HEADER} must be a whole number of milliseconds from 1 to {MAX_TIMEOUT_MS}"
        raise InvalidField(f"{message}, got {given[:32].decode('latin-1')!r}", field=TIMEOUT_HEADER)
    return timeout_ms


def task_response(reply: Reply, exchange: Exchange) -> Response[bytes]:
    """The envelope, and what was measured in its headers."""
    exchange.model, exchange.tokens, exchange.timings = reply.model, reply.usage.input_tokens, reply.timings
    usage = {"input_tokens": reply.usage.input_tokens}
    if reply.usage.output_tokens is not None:
        usage["output_tokens"] = reply.usage.output_tokens
    body = encode_json({"model": reply.model, "results": reply.results, "usage": usage})
    return Response(body, media_type="application/json", headers=timing_headers(reply.timings))


def timing_headers(timings: Timings) -> dict[str, str]:
    """``Server-Timing`` in milliseconds, and the last batch that the request rode in."""
    return {
        "Server-Timing": (
            f"tokenize;dur={timings.tokenize_s * 1000:.2f}, queue;dur={timings.queue_s * 1000:.2f}, "
            f"run;dur={timings.run_s * 1000:.2f}, post;dur={timings.post_s * 1000:.2f}"
        ),
        "X-Padserve-Batch-Tokens": str(timings.batch_tokens),
        "X-Padserve-Batch-Size": str(timings.batch_size),
    }
