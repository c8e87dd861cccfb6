"""One request and its reply, as the access log and the metrics see them."""

import random
import time
from dataclasses import dataclass, field
from typing import Any

from litestar.types import Scope

from padserve.core import Timings

MAX_REQUEST_ID_LENGTH = 128
_RANDOM = random.Random()  # seeded by the system once; asking it for every request costs more than routing does


@dataclass(slots=True)
class Exchange:
    """Made by `RequestObserver` and filled in by those who know: routes, error handlers, the observer itself."""

    request_id: str
    received_at: float = field(default_factory=time.perf_counter)
    status: int = 0  # 0 until the reply starts
    task: str = ""
    model: str = ""
    tokens: int | None = None
    timings: Timings | None = None
    error_code: str | None = None


def exchange_of(scope: Scope) -> Exchange:
    """The exchange of a connection; a new one where no observer has made it."""
    state: dict[str, Any] = scope["state"]
    exchange = state.get("exchange")
    if not isinstance(exchange, Exchange):
        exchange = state["exchange"] = Exchange(choose_request_id(scope))
    return exchange


def choose_request_id(scope: Scope) -> str:
    """The client's ``X-Request-Id`` if it is printable ASCII of a sane length, else a new one."""
    given = header(scope, b"x-request-id")
    if given is not None and 0 < len(given) <= MAX_REQUEST_ID_LENGTH and all(32 <= byte < 127 for byte in given):
        return given.decode("ascii")
    return f"{_RANDOM.getrandbits(96):024x}"


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header called ``name`` (lower case), without outer spaces."""
    for key, value in scope["headers"]:
        if key == name:
            return value.strip()
    return None
