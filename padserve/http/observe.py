"""What happens to every request, whatever its route: its id, its one access line, its one count."""

import asyncio
import logging
import time
from typing import Any

from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from padserve.http.exchange import Exchange, choose_request_id
from padserve.telemetry.metrics import Metrics

logger = logging.getLogger("padserve.access")
QUIET_PATHS = frozenset(
    {"/livez", "/readyz", "/startupz", "/metrics", "/tei/health", "/v2/health/live", "/v2/health/ready"}
)


class RequestObserver(ASGIMiddleware):
    """Outermost layer, so that unknown routes and wrong methods are seen too. HEAD is GET without its body."""

    scopes = (ScopeType.HTTP,)

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        exchange = Exchange(choose_request_id(scope))
        scope["state"]["exchange"] = exchange
        request_id = exchange.request_id.encode("ascii")
        is_head = scope["method"] == "HEAD"  # type: ignore[typeddict-item]

        async def send_observed(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            elif is_head and message["type"] == "http.response.body":
                message["body"] = b""
            await send(message)

        try:
            await next_app(_as_get(scope) if is_head else scope, receive, send_observed)
        except asyncio.CancelledError:
            exchange.status = exchange.status or 499
            raise
        finally:
            self._finish(scope, exchange)

    def _finish(self, scope: Scope, exchange: Exchange) -> None:
        total_s = time.perf_counter() - exchange.received_at
        status = exchange.status or 500
        self._metrics.request_finished(exchange.task, exchange.model, status, total_s)
        level = logging.DEBUG if scope["path"] in QUIET_PATHS else logging.INFO
        if logger.isEnabledFor(level):
            logger.log(level, "request", extra=_fields(scope, exchange, status, total_s))


def _as_get(scope: Scope) -> Scope:
    """A copy: the server looks at the method of its own scope."""
    return {**scope, "method": "GET"}  # type: ignore[return-value]


def _fields(scope: Scope, exchange: Exchange, status: int, total_s: float) -> dict[str, Any]:
    """The access line. Never the texts of a request."""
    fields: dict[str, Any] = {
        "request_id": exchange.request_id,
        "method": scope["method"],  # type: ignore[typeddict-item]
        "path": scope["path"][:128],
        "status": status,
        "total_ms": _ms(total_s),
    }
    if exchange.task:
        fields |= {"task": exchange.task, "model": exchange.model[:128]}
    if (timings := exchange.timings) is not None:
        fields |= {
            "tokens": exchange.tokens,
            "queue_ms": _ms(timings.queue_s),
            "run_ms": _ms(timings.run_s),
            "batch_size": timings.batch_size,
        }
    if exchange.error_code is not None:
        fields["error"] = exchange.error_code
    return fields


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
