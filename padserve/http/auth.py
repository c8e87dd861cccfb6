"""API keys: ``Authorization: Bearer KEY`` or ``X-API-Key: KEY``."""

import hmac
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers.base import BaseRouteHandler

from padserve.errors import ConfigError, Unauthorized
from padserve.http.exchange import header

PUBLIC = "public"
"""Key of a handler's ``opt``: served without an API key."""


def read_api_keys(path: str) -> tuple[str, ...]:
    """One key a line; empty lines and ``#`` comments are skipped. Errors: `ConfigError`, also if there is no key."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"[server] api_keys_file: cannot read {path!r}: {error}") from error
    keys = tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    if not keys:
        raise ConfigError(f"[server] api_keys_file: {path!r} holds no key; write one key a line, or unset the option")
    return keys


class ApiKeyGuard:
    """Refuses a request without one of the keys, unless its handler is public. Errors: `Unauthorized`."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = tuple(key.encode() for key in keys)

    async def __call__(self, connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        if handler.opt.get(PUBLIC):
            return
        given = _given_key(connection)
        if given is None:
            raise Unauthorized("an API key is needed; send the header 'Authorization: Bearer KEY'")
        # every key is compared, so that time does not tell which one was close
        matches = [hmac.compare_digest(given, key) for key in self._keys]
        if not any(matches):
            raise Unauthorized("the API key is not known here")


def _given_key(connection: ASGIConnection[Any, Any, Any, Any]) -> bytes | None:
    authorization = header(connection.scope, b"authorization")
    if authorization is not None:
        scheme, _, key = authorization.partition(b" ")
        if scheme.lower() == b"bearer" and key.strip():
            return key.strip()
    return header(connection.scope, b"x-api-key") or None
