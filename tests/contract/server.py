"""A ``padserve serve`` process under test: written configuration, watched start, drained output, counted exit."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

SCRIPT = Path(sys.executable).parent / "padserve"
HEALTH = ("/livez", "/startupz", "/readyz")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PADSERVE_")}
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    return kept | quiet | dict(extra or {})


def write_config(path: Path, server: Mapping[str, Any], models: Sequence[Mapping[str, Any]]) -> Path:
    lines = ["[server]", *(f"{key} = {_toml(value)}" for key, value in server.items())]
    for model in models:
        lines += ["", "[[models]]", *(f"{key} = {_toml(value)}" for key, value in model.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + "}"
    return json.dumps(str(value) if isinstance(value, Path) else value)


@dataclass(slots=True)
class Server:
    process: subprocess.Popen[bytes]
    folder: Path
    port: int = 0
    uds: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    start: list[httpx.Response] = field(default_factory=list)
    """What it answered while it started, in order."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}" if self.port else "http://padserve"

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr.log").read_text(errors="replace")

    @property
    def output(self) -> str:
        return self.stderr + (self.folder / "stdout.log").read_text(errors="replace")

    def client(self, timeout_s: float = 60.0) -> httpx.Client:
        transport = httpx.HTTPTransport(verify=False, uds=self.uds or None)
        return httpx.Client(base_url=self.url, transport=transport, timeout=timeout_s, headers=self.headers)

    def async_client(self, connections: int = 64, timeout_s: float = 60.0) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        transport = httpx.AsyncHTTPTransport(verify=False, uds=self.uds or None, limits=limits)
        return httpx.AsyncClient(base_url=self.url, transport=transport, timeout=timeout_s, headers=self.headers)

    def wait_ready(self, timeout_s: float = 90.0) -> "Server":
        """Ask until /readyz is 200, keeping every answer in ``start``."""
        began = time.monotonic()
        with self.client() as client:
            while time.monotonic() - began < timeout_s:
                if self.process.poll() is not None:
                    raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.output[-4000:]}")
                if self.reachable() and self._probe(client):
                    return self
                time.sleep(0.02)
        raise AssertionError(f"not ready after {timeout_s} s:\n{self.output[-4000:]}")

    def _probe(self, client: httpx.Client) -> bool:
        """Ask health, and for work that is too early; True once /readyz is green."""
        replies = [client.get(path) for path in HEALTH]
        if replies[-1].status_code != 200:
            replies.append(client.post("/classify", json={"inputs": "early"}))
        self.start += replies
        return replies[-1].request.url.path == "/readyz"

    def reachable(self) -> bool:
        """Whether something listens; asked with a plain socket, since httpx leaks one when it cannot connect."""
        with self._socket() as probe:
            return probe.connect_ex(self._address) == 0

    def connect(self) -> socket.socket:
        connection = self._socket()
        connection.connect(self._address)
        return connection

    @property
    def _address(self) -> Any:
        return self.uds or ("127.0.0.1", self.port)

    def _socket(self) -> socket.socket:
        return socket.socket(socket.AF_UNIX if self.uds else socket.AF_INET)

    def terminate(self, timeout_s: float = 40.0) -> int:
        """SIGTERM, then the exit code; killed and -9 when it does not end in time."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait_exit(timeout_s)

    def wait_exit(self, timeout_s: float = 40.0) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(10)


def launch(
    folder: Path,
    config: Path | None,
    *flags: str,
    port: int = 0,
    uds: str = "",
    environment: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Server:
    """Start ``padserve serve CONFIG FLAGS`` with its output drained into ``folder``; does not wait."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [str(SCRIPT), "serve", *([str(config)] if config else []), *flags]
    with (folder / "stdout.log").open("wb") as out, (folder / "stderr.log").open("wb") as err:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=clean_environment(environment), cwd=folder
        )
    return Server(process, folder, port, uds, dict(headers or {}))


def run_to_end(*arguments: str, folder: Path, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run ``padserve ARGUMENTS`` that is expected to end by itself."""
    return subprocess.run(
        [str(SCRIPT), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=clean_environment(),
        cwd=folder,
        timeout=timeout_s,
        check=False,
    )
