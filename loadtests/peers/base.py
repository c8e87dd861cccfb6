"""What the benchmark needs to know of a server: how to install, start and ask it."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

VENVS = Path(__file__).parent / ".venvs"
MODEL_NAME = "minilm"


class Peer(Protocol):
    """A server of embeddings. ``ready``: the path that answers 200 once requests are served; ``embed``: the route."""

    @property
    def name(self) -> str: ...
    @property
    def ready(self) -> str: ...
    @property
    def embed(self) -> str: ...

    def install(self) -> None:
        """Make the server's own environment; nothing if it is there already."""

    def command(self, model: str, dtype: str, port: int) -> list[str]:
        """Serve the local folder ``model`` in ``dtype`` (``float32`` or ``bfloat16``) on the loopback interface."""

    def environment(self) -> Mapping[str, str]: ...

    def body(self, text: str) -> bytes:
        """An embedding request in the server's own shape."""

    def vector(self, reply: dict[str, Any]) -> list[float]: ...


def openai_body(text: str) -> bytes:
    return json.dumps({"model": MODEL_NAME, "input": text}).encode()


def openai_vector(reply: dict[str, Any]) -> list[float]:
    vector: list[float] = reply["data"][0]["embedding"]
    return vector


def venv(name: str) -> Path:
    return VENVS / name


def make_venv(name: str, pins: Sequence[str], fill: Callable[[Path], None]) -> None:
    """A virtual environment that ``fill`` installs into, given its folder. Done again when the pins change."""
    home = venv(name)
    stamp, wanted = home / ".installed", "\n".join(pins)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    if not (home / "bin/pip").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    fill(home)
    stamp.write_text(wanted)


def pip_install(home: Path, *arguments: str) -> None:
    subprocess.run([str(home / "bin/pip"), "install", "--quiet", *arguments], check=True)


def site_packages(home: Path) -> Path:
    return next((home / "lib").glob("python*/site-packages"))
