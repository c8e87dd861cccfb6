"""What the benchmark needs to know of a server: how to install, start and ask it."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from loadtests.tasks import FAMILIES, Ranking

ROOT = Path(__file__).resolve().parent.parent.parent
VENVS = (Path(__file__).parent / ".venvs").resolve()  # a link is followed: an environment stays where it is made
MODEL_NAME = "served"
BOTH_DTYPES = ("float32", "bfloat16")
TRANSLATING = tuple(name + kind for name in FAMILIES for kind in ("", "-beams"))


@dataclass(frozen=True, slots=True)
class Ask:
    """How a server is asked one task. ``answer``: the main numbers of a reply, in the task's own form (`tasks.py`).

    ``headers``: more of them, as ``Name: value``.
    """

    path: str
    body: Callable[[Any], Any]
    answer: Callable[[Any], Any]
    headers: Sequence[str] = ()

    def encoded(self, asked: Any, more: Mapping[str, Any] | None = None) -> bytes:
        """``more``: further fields of the body."""
        return json.dumps({**self.body(asked), **(more or {})}).encode()


class Peer(Protocol):
    """A server. ``ready``: the path that answers 200 once requests are served.

    ``asks``: by the names of the tasks that it serves. ``exact``: whether its answers should be the model's; those of
    one that is not are reported and measured all the same.
    """

    @property
    def name(self) -> str: ...
    @property
    def ready(self) -> str: ...
    @property
    def asks(self) -> Mapping[str, Ask]: ...
    @property
    def dtypes(self) -> Sequence[str]: ...
    @property
    def exact(self) -> bool: ...

    def prepare(self, task: str, model: Path) -> None:
        """Make the server's own environment and files; nothing if they are there already."""

    def command(self, task: str, model: Path, dtype: str, port: int) -> list[str]:
        """Serve the folder ``model`` in ``dtype`` (``float32`` or ``bfloat16``) on the loopback interface."""

    def environment(self) -> Mapping[str, str]: ...


def openai_embed(path: str) -> Ask:
    return Ask(path, lambda text: {"model": MODEL_NAME, "input": text}, lambda reply: reply["data"][0]["embedding"])


def cohere_rerank(path: str) -> Ask:
    def body(asked: Ranking) -> dict[str, Any]:
        return {"model": MODEL_NAME, "query": asked.query, "documents": asked.documents}

    return Ask(path, body, lambda reply: [one["index"] for one in best_first(reply["results"], "relevance_score")])


def best_first(entries: Sequence[Mapping[str, Any]], score: str = "score") -> list[Mapping[str, Any]]:
    return sorted(entries, key=lambda entry: float(entry[score]), reverse=True)


def top(entries: Sequence[Mapping[str, Any]], name: str) -> tuple[Any, float]:
    best = best_first(entries)[0]
    return best[name], best["score"]


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
    subprocess.run([str(home / "bin/pip"), "install", "-qq", *arguments], check=True)


def run_python(name: str, module: str, *arguments: object) -> None:
    """A module of `servers` by the python of an environment. Errors: `subprocess.CalledProcessError`."""
    command = [str(venv(name) / "bin/python"), "-m", module, *map(str, arguments)]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def site_packages(home: Path) -> Path:
    return next((home / "lib").glob("python*/site-packages"))
