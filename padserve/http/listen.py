"""The sockets that a server listens on, bound before anything is loaded, so that a taken address is told at once."""

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from typing import Any

from padserve.errors import ConfigError

NOT_HERE = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})
"""A name may stand for addresses of a kind that this machine does not have, as ``localhost`` for ``::1``."""


@contextlib.contextmanager
def bound(host: str, port: int, uds: str) -> Iterator[list[socket.socket]]:
    """Sockets for a Unix socket's path, or for every address of ``host``; closed, and the path removed, at the end.

    Errors: `ConfigError` for an address that cannot be had.
    """
    sockets: list[socket.socket] = []
    try:
        if uds:
            sockets.append(_bind_path(uds))
        else:
            _bind_host(host, port, sockets)
        yield sockets
    finally:
        for each in sockets:
            each.close()
        if uds and sockets:
            with contextlib.suppress(OSError):
                os.unlink(uds)


def _bind_host(host: str, port: int, sockets: list[socket.socket]) -> None:
    """One socket an address, as asyncio does it; added to ``sockets`` one by one."""
    place = f"{host}:{port}"
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"cannot listen on {place}: {error}") from error
    absent: OSError | None = None
    for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
        try:
            sockets.append(_bind_address(family, address))
        except OSError as error:
            if error.errno not in NOT_HERE:
                raise ConfigError(f"cannot listen on {place}: {error.strerror}") from error
            absent = error
    if not sockets:
        raise ConfigError(f"cannot listen on {place}: {absent.strerror if absent else 'no address'}")


def _bind_address(family: int, address: Any) -> socket.socket:
    each = socket.socket(family, socket.SOCK_STREAM)
    try:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        each.bind(address)
    except OSError:
        each.close()
        raise
    return each


def _bind_path(path: str) -> socket.socket:
    """A Unix socket that everybody may use. What a dead server left there is replaced, a living one's is not."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise ConfigError(f"cannot listen on {path}: a file that is no socket stands there")
        if _answers(path):
            raise ConfigError(f"cannot listen on {path}: another server does")
        os.unlink(path)
    each = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        each.bind(path)
        os.chmod(path, 0o666)
    except OSError as error:
        each.close()
        raise ConfigError(f"cannot listen on {path}: {error.strerror or error}") from error
    return each


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except OSError:
            return False
        return True
