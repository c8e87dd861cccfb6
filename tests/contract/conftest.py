"""A real server process, over small checkpoints and the starter set, asked over HTTP only."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.tasks.conftest import BIO, labels, save

READY_S = 120.0
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mlm": ("bytelevel", "AutoModelForMaskedLM", {}),
    "classes": ("wordpiece", "AutoModelForSequenceClassification", labels(["joy", "anger", "fear"])),
    "nli": ("metaspace", "AutoModelForSequenceClassification", labels(["contradiction", "neutral", "entailment"])),
    "cross": ("wordpiece", "AutoModelForSequenceClassification", labels(["relevant"])),
    "ner": ("wordpiece", "AutoModelForTokenClassification", labels(BIO)),
    "vectors": ("wordpiece", "AutoModel", {}),
}


class Running:
    """A server process. ``client`` talks to it."""

    def __init__(self, process: "subprocess.Popen[bytes]", base: str, log: Path) -> None:
        self.process, self.base, self.log = process, base, log
        self.client = httpx.Client(base_url=base, timeout=60)

    def post(self, route: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.client.post(route, json=body, **options) if body is not None else self.client.post(route, **options)

    def metric(self, name: str) -> float:
        """Sum over the samples of a metric whose line starts with ``name``."""
        lines = self.client.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    def wait_ready(self) -> None:
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            assert self.process.poll() is None, self.log.read_text()
            with contextlib.suppress(httpx.TransportError):
                if self.client.get("/readyz").status_code == 200:
                    return
            time.sleep(0.1)
        raise TimeoutError(self.log.read_text())


Start = Callable[..., contextlib.AbstractContextManager[Running]]


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """``with start(*arguments, **environment) as server``: ends with SIGTERM, and status 0 is required."""

    @contextlib.contextmanager
    def run(*arguments: str, wait: bool = True, **environment: str) -> Iterator[Running]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        log = tmp_path_factory.mktemp("server") / "log"
        command = [sys.executable, "-m", "padserve", "serve", *arguments, "--port", str(port), "--workers", "2"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "--threads", "1"], stdout=output, stderr=output, env={**os.environ, **environment}
            )
        server = Running(process, f"http://127.0.0.1:{port}", log)
        try:
            if wait:
                server.wait_ready()
            yield server
        finally:
            process.send_signal(signal.SIGTERM)
            status = process.wait(60)
            server.client.close()
        assert status == 0, log.read_text()

    return run


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name, (kind, auto_class, changes) in MODELS.items():
        made[name] = tmp_path_factory.mktemp(name)
        save(made[name], kind, auto_class, changes)
    return made


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory, folders: dict[str, Path]) -> Path:
    path = tmp_path_factory.mktemp("config") / "padserve.toml"
    path.write_text(
        "".join(f'[[models]]\nname = "{name}"\nsource = "{folder}"\n\n' for name, folder in folders.items())
    )
    return path


@pytest.fixture(scope="session")
def server(start: Start, config: Path) -> Iterator[Running]:
    with start(str(config)) as running:
        yield running
