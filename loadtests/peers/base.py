"""What the benchmark needs to know of a server: how to install, start and ask it."""

import contextlib
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VENVS = Path(__file__).parent / ".venvs"


@dataclass(frozen=True, slots=True)
class Peer:
    """``command`` holds ``{port}``, ``{model}`` and ``{dtype}``; ``ready`` answers 200 once requests are served.

    ``dtypes``: what the server calls each dtype; one that is missing is not offered.
    """

    name: str
    command: Sequence[str]
    ready: str
    embed: str
    dtypes: dict[str, str]
    environment: dict[str, str] = field(default_factory=dict)

    def body(self, text: str) -> bytes:
        """An embedding request in the server's own shape."""
        return json.dumps(self.fields(text)).encode()

    def fields(self, text: str) -> dict[str, Any]:
        return {"model": "minilm", "input": text}

    def vector(self, reply: dict[str, Any]) -> list[float]:
        vector: list[float] = reply["data"][0]["embedding"]
        return vector

    def install(self) -> None:
        """Make the server's own environment, once."""


def venv(name: str) -> Path:
    return VENVS / name


def make_venv(name: str, *installs: Sequence[str]) -> None:
    """A virtual environment with the given pip installs, one after the other; nothing if it is there already."""
    home = venv(name)
    if (home / ".installed").exists():
        return
    subprocess.run(["python3", "-m", "venv", str(home)], check=True)
    for arguments in installs:
        subprocess.run([str(home / "bin/pip"), "install", "--quiet", *arguments], check=True)
    (home / ".installed").touch()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def running(peer: Peer, model: str, dtype: str, log: Path, timeout_s: float = 240.0) -> Iterator[str]:
    """Start a server, wait until it is ready, and stop it at the end. Yields its base URL."""
    port = free_port()
    command = [part.format(port=port, model=model, dtype=peer.dtypes[dtype]) for part in peer.command]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", **peer.environment}
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    base = f"http://127.0.0.1:{port}"
    try:
        wait_ready(process, base + peer.ready, timeout_s)
        yield base
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_ready(process: "subprocess.Popen[bytes]", url: str, timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode} before it was ready")
        if answers(url):
            return
        time.sleep(0.3)
    raise TimeoutError(f"{url} was not ready within {timeout_s:g} s")


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def post(url: str, body: bytes) -> dict[str, Any]:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        decoded: dict[str, Any] = json.load(reply)
        return decoded
