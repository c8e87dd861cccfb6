"""Errors as ``application/problem+json`` (RFC 9457)."""

import difflib
import logging
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException
from litestar.types import Scope

from padserve.errors import InternalError, MethodNotAllowed, PadserveError, Unauthorized, UnknownRoute
from padserve.http.exchange import exchange_of

logger = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"
AnyRequest = Request[Any, Any, Any]
ExceptionHandler = Callable[[AnyRequest, Any], Response[bytes]]


def exception_handlers(routes: Sequence[str]) -> dict[int | type[Exception], ExceptionHandler]:
    """Handlers for all that a request can raise. ``routes``: known paths, for the message of a 404."""

    def on_not_found(request: AnyRequest, error: NotFoundException) -> Response[bytes]:
        return problem_response(request, UnknownRoute(_unknown_route(request.url.path, routes)))

    return {
        PadserveError: on_padserve_error,
        NotFoundException: on_not_found,
        MethodNotAllowedException: on_method_not_allowed,
        HTTPException: on_http_exception,
        Exception: on_bug,
    }


def on_padserve_error(request: AnyRequest, error: PadserveError) -> Response[bytes]:
    if isinstance(error, InternalError):
        logger.error("internal error", exc_info=error, extra={"request_id": exchange_of(request.scope).request_id})
    return problem_response(request, error)


def on_method_not_allowed(request: AnyRequest, error: MethodNotAllowedException) -> Response[bytes]:
    allowed = _allowed_methods((error.headers or {}).get("allow", ""))
    message = f"{request.scope['method']} is not allowed on {request.url.path}; use {' or '.join(allowed)}"
    return problem_response(request, MethodNotAllowed(message), {"Allow": ", ".join(allowed)})


def on_http_exception(request: AnyRequest, error: HTTPException) -> Response[bytes]:
    """What the framework refuses by itself, such as an invalid Host header."""
    if error.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return on_bug(request, error)
    phrase = HTTPStatus(error.status_code).phrase
    code = phrase.lower().replace(" ", "_").replace("-", "_")
    return _respond(request, error.status_code, code, phrase, error.detail, {}, {})


def on_bug(request: AnyRequest, error: Exception) -> Response[bytes]:
    """A fault of ours: its traceback goes to the log, not to the client."""
    request_id = exchange_of(request.scope).request_id
    logger.error("unhandled %s", type(error).__name__, exc_info=error, extra={"request_id": request_id})
    message = "the server failed on this request; its log has the cause under the request_id given here"
    return problem_response(request, InternalError(message))


def problem_response(
    request: AnyRequest, error: PadserveError, headers: dict[str, str] | None = None
) -> Response[bytes]:
    """The reply of an error, with ``Retry-After`` and ``WWW-Authenticate`` where they belong."""
    headers = dict(headers or {})
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        headers["Retry-After"] = str(retry_after_s)
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return _respond(request, error.status, error.code, error.title, error.message, error.extra, headers)


def _respond(
    request: AnyRequest,
    status: int,
    code: str,
    title: str,
    detail: str,
    extra: dict[str, Any],
    headers: dict[str, str],
) -> Response[bytes]:
    members = _members(request.scope, status, code, title, detail, extra)
    return Response(_encode(members), status_code=status, media_type=MEDIA_TYPE, headers=headers)


def problem_of(error: PadserveError, scope: Scope) -> dict[str, Any]:
    """The members of an error's problem object, for where it is no reply of its own."""
    return _members(scope, error.status, error.code, error.title, error.message, error.extra)


def _members(scope: Scope, status: int, code: str, title: str, detail: str, extra: dict[str, Any]) -> dict[str, Any]:
    exchange = exchange_of(scope)
    exchange.error_code = code
    return {
        **extra,
        "type": f"urn:padserve:error:{code}",
        "title": title,
        "status": status,
        "detail": detail,
        "code": code,
        "request_id": exchange.request_id,
    }


def _encode(members: dict[str, Any]) -> bytes:
    return msgspec.json.encode(members, enc_hook=str)


def _allowed_methods(allow: str) -> list[str]:
    """The framework's list, and HEAD wherever there is GET."""
    methods = {method.strip() for method in allow.split(",")} - {""}
    return sorted(methods | {"HEAD"} if "GET" in methods else methods)


def _unknown_route(path: str, routes: Sequence[str]) -> str:
    nearest = difflib.get_close_matches(path, routes, n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else ";"
    return f"no route {path[:128]!r}{hint} the routes are {', '.join(routes)}"
