"""Errors in the words of the server that an adapter stands for.

an error -> problem object (native) -> Dialect of the path's prefix -> status and body
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from litestar import Response
from litestar.types import Scope

from padserve.errors import ClientClosed, PadserveError
from padserve.http.problems import AnyRequest, ExceptionHandler

Problem = Mapping[str, Any]
"""The members of a problem object: ``status``, ``code``, ``detail``, and those that belong to its error."""
DIALECT = "dialect"
"""Key of a connection's state that holds the dialect of its request, where the path does not tell it."""
KeyT = TypeVar("KeyT")


@dataclass(frozen=True, slots=True)
class Dialect:
    """``write``: the status and the body, an ``error_type``, that say a problem."""

    error_type: type[msgspec.Struct]
    write: Callable[[Problem], tuple[int, msgspec.Struct]]

    def described(self, statuses: Iterable[int]) -> dict[str, str]:
        """For the API docs: the statuses that stand for these native ones, and the native codes behind each."""
        wanted, codes = frozenset(statuses), dict[int, list[str]]()
        for kind in error_classes():
            if kind.status in wanted:
                status, _ = self.write({"status": kind.status, "code": kind.code, "detail": ""})
                codes.setdefault(status, []).append(kind.code)
        return {str(status): ", ".join(dict.fromkeys(found)) for status, found in sorted(codes.items())}


def in_dialects(
    handlers: Mapping[KeyT, ExceptionHandler], dialects: Mapping[str, Dialect]
) -> dict[KeyT, ExceptionHandler]:
    """The same exception handlers, but under each prefix in its dialect, 404 and 405 of unknown routes included."""

    def translated(handler: ExceptionHandler) -> ExceptionHandler:
        def handle(request: AnyRequest, error: Any) -> Response[bytes]:
            problem = handler(request, error)
            dialect = request.scope["state"].get(DIALECT) or dialect_of(request.scope["path"], dialects)
            return problem if dialect is None else _reworded(problem, dialect)

        return handle

    return {kind: translated(handler) for kind, handler in handlers.items()}


def dialect_of(path: str, dialects: Mapping[str, Dialect]) -> Dialect | None:
    """None where errors are problem objects."""
    return next((each for prefix, each in dialects.items() if f"{path}/".startswith(f"{prefix}/")), None)


def speak(scope: Scope, dialect: Dialect) -> None:
    """From here on, errors of this request are in the dialect."""
    state: dict[str, Any] = scope["state"]
    state[DIALECT] = dialect


def _reworded(problem: Response[bytes], dialect: Dialect) -> Response[bytes]:
    status, body = dialect.write(msgspec.json.decode(problem.content))
    content = msgspec.json.encode(body)
    return Response(content, status_code=status, media_type="application/json", headers=problem.headers)


def error_classes(root: type[PadserveError] = PadserveError) -> Iterator[type[PadserveError]]:
    """Every error that a client can be told about."""
    if root is not ClientClosed:
        yield root
    for kind in root.__subclasses__():
        yield from error_classes(kind)
