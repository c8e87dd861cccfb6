"""Servers as child processes on the loopback interface: start, wait until ready, ask, stop."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Set by shells and by make for other ends: a server that is measured keeps its own defaults.
NOT_INHERITED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM", "LD_PRELOAD")


@dataclass(slots=True)
class Server:
    """``status``: how the process ended, None while it runs."""

    base: str
    pid: int
    status: int | None = None


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def running(
    command: Sequence[str],
    port: int,
    ready: str,
    log: Path,
    environment: Mapping[str, str] | None = None,
    ready_s: float = 240.0,
    stop_s: float = 60.0,
) -> Iterator[Server]:
    """A server from when ``ready`` answers 200 until SIGTERM; killed with its children if that takes over ``stop_s``.

    Errors: `RuntimeError` when it ends before it is ready, `TimeoutError` when it is not ready within ``ready_s``.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    inherited |= {"HF_HUB_OFFLINE": "1", **(environment or {})}
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=inherited, start_new_session=True)
    server = Server(f"http://127.0.0.1:{port}", process.pid)
    try:
        wait_ready(process, server.base + ready, ready_s, log)
        yield server
    finally:
        server.status = stop(process, stop_s)


def stop(process: "subprocess.Popen[bytes]", stop_s: float) -> int:
    """SIGTERM; SIGKILL to the whole process group after ``stop_s``, or to what the process has left of it before then.

    Returns the exit status.
    """
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(stop_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def wait_ready(process: "subprocess.Popen[bytes]", url: str, ready_s: float, log: Path) -> None:
    until = time.monotonic() + ready_s
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode} before it was ready; see {log}")
        if answers(url):
            return
        time.sleep(0.3)
    raise TimeoutError(f"{url} was not ready within {ready_s:g} s; see {log}")


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def post(url: str, body: bytes, timeout_s: float = 60.0) -> dict[str, Any]:
    """Errors: `RuntimeError` with the status and the body of a reply that is not 2xx."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:
            decoded: dict[str, Any] = json.load(reply)
            return decoded
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{url}: status {error.code}: {error.read()[:300].decode(errors='replace')}") from error
