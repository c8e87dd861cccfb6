"""Requests that are sent and not waited for: each on a connection of its own, answered later or left."""

import http.client
import json
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.contract.server import Server


class Pending:
    """A POST that is on its way."""

    def __init__(self, server: Server, path: str, body: dict[str, Any]) -> None:
        self._connection = http.client.HTTPConnection("padserve", timeout=60)
        self._connection.sock = server.connect()
        headers = {"Content-Type": "application/json", "Connection": "close"}
        self._connection.request("POST", path, json.dumps(body), headers)

    def answered(self) -> bool:
        readable, _, _ = select.select([self._connection.sock], [], [], 0)
        return bool(readable)

    def reply(self) -> tuple[int, dict[str, Any]]:
        """Wait for the status and the body."""
        with self._connection.getresponse() as response:
            return response.status, json.loads(response.read())

    def leave(self) -> None:
        self._connection.close()


@contextmanager
def sent(server: Server, path: str, bodies: list[dict[str, Any]]) -> Iterator[list[Pending]]:
    """All of them on their way; those that still are at the end are left."""
    pending: list[Pending] = []
    try:
        for body in bodies:
            pending.append(Pending(server, path, body))
        yield pending
    finally:
        for each in pending:
            each.leave()


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)
