"""HTTP/1.1 as the load client writes and reads it: whole requests made beforehand, whole replies."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

LAST_CHUNK = b"0\r\n\r\n"


def prepared(url: str, bodies: Sequence[bytes], headers: Sequence[str] = ()) -> list[bytes]:
    """Whole HTTP/1.1 POST requests, ready to be written. ``headers``: ``Name: value``."""
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = [f"POST {target} HTTP/1.1", f"Host: {parts.netloc}", *headers]
    if not any(header.lower().startswith("content-type:") for header in headers):
        lines.append("Content-Type: application/json")
    head = "\r\n".join([*lines, "Content-Length: "]).encode()
    return [head + str(len(body)).encode() + b"\r\n\r\n" + body for body in bodies]


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes
    stays: bool


def parsed(buffer: bytes) -> Reply | None:
    """A whole HTTP/1.1 reply, None while some of it is missing. Errors: `ValueError` when it is none."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = buffer[: end + 2].lower()
    length = head.find(b"\r\ncontent-length:")
    if length >= 0:
        size = int(head[length + 17 : head.index(b"\r\n", length + 2)])
        body = buffer[end + 4 : end + 4 + size] if len(buffer) >= end + 4 + size else None
    else:
        body = _chunks(buffer, end + 4)
    return None if body is None else Reply(int(head[9:12]), body, b"\r\nconnection: close\r\n" not in head)


def _chunks(buffer: bytes, at: int) -> bytes | None:
    body = b""
    while (line := buffer.find(b"\r\n", at)) >= 0:
        size = int(buffer[at:line], 16)
        at = line + 2 + size + 2
        if len(buffer) < at:
            return None
        if size == 0:
            return body
        body += buffer[line + 2 : line + 2 + size]
    return None
