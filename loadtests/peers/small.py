"""The small servers of ``servers/``, each run by the python of its own environment."""

import os
import subprocess
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtests.generating import Passage
from loadtests.models import RESULTS
from loadtests.peers.base import BOTH_DTYPES, ROOT, TRANSLATING, Ask, make_venv, pip_install, top, venv


def text_body(text: str) -> dict[str, Any]:
    return {"text": text}


def passage_body(asked: Passage) -> dict[str, Any]:
    return {"text": asked.text, "max_new_tokens": asked.new_tokens, "beams": asked.beams}


ASKS = {
    "embed": Ask("/embed", text_body, lambda reply: reply["embedding"]),
    "classify": Ask("/classify", text_body, lambda reply: top(reply["labels"], "label")),
    "fill-mask": Ask("/fill-mask", text_body, lambda reply: top(reply["tokens"], "token")),
    "rerank": Ask(
        "/rerank",
        lambda asked: {"query": asked.query, "documents": asked.documents},
        lambda reply: [one["index"] for one in reply["results"]],
    ),
}

GENERATING_ASKS = {"generate": Ask("/generate", passage_body, lambda reply: reply["tokens"])}
TRANSLATING_ASKS = {task: Ask(f"/{task}", passage_body, lambda reply: reply["tokens"]) for task in TRANSLATING}

# torch is pinned to its CPU build: another would bring gigabytes of GPU libraries.
STOCK = ("torch==2.13.0+cpu", "transformers==5.24.0", "orjson==3.13.0")
WEB = ("fastapi==0.165.0", "uvicorn[standard]==0.54.0")
ONNX = ("onnxruntime==1.32.0", "onnx==1.23.2", "onnxscript==0.7.2")
PINS = {
    "libraries": (*STOCK, *WEB, "sentence-transformers==6.2.0"),
    "litserve": (*STOCK, "litserve==0.2.19"),
    "mosec": (*STOCK, "mosec==0.9.8"),
    "onnxruntime": (*STOCK, *WEB, *ONNX),
}


@dataclass(frozen=True, slots=True)
class Small:
    """``script``: the module in ``servers/``, with ``options`` of its own. ``home``: the environment, of `PINS`."""

    name: str
    script: str
    home: str
    options: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    ready: str = "/health"
    asks: Mapping[str, Ask] = field(default_factory=lambda: ASKS)
    dtypes: Sequence[str] = BOTH_DTYPES
    exact: bool = True

    def prepare(self, task: str, model: Path) -> None:
        make_home(self.home)

    def command(self, task: str, model: Path, dtype: str, port: int) -> list[str]:
        return [
            *(python(self.home), "-m", f"loadtests.peers.servers.{self.script}", "--task", task),
            *("--model", str(model), "--dtype", dtype, "--port", str(port), *self.options),
        ]

    def environment(self) -> Mapping[str, str]:
        return {"PYTHONPATH": str(ROOT), **self.settings}


@dataclass(frozen=True, slots=True)
class Onnxruntime:
    int8: bool = False
    ready: str = "/health"
    asks: Mapping[str, Ask] = field(default_factory=lambda: ASKS)
    dtypes: Sequence[str] = ("float32",)

    @property
    def name(self) -> str:
        return "onnxruntime 1.32.0" + (" int8" if self.int8 else "")

    @property
    def exact(self) -> bool:
        return not self.int8

    def prepare(self, task: str, model: Path) -> None:
        exported(task, model)

    def command(self, task: str, model: Path, dtype: str, port: int) -> list[str]:
        server = Small(self.name, "onnx", "onnxruntime", ("--onnx", str(onnx_file(task, model, self.int8))))
        return server.command(task, model, dtype, port)

    def environment(self) -> Mapping[str, str]:
        return {"PYTHONPATH": str(ROOT)}


def naive() -> Small:
    return Small("naive FastAPI", "naive", "libraries", asks=ASKS | TRANSLATING_ASKS)


def pipeline() -> Small:
    return Small("batched pipeline", "pipeline", "libraries", asks=ASKS | TRANSLATING_ASKS)


def one_at_a_time() -> Small:
    return Small("transformers one at a time", "one_at_a_time", "libraries", asks=GENERATING_ASKS)


def continuous() -> Small:
    return Small("transformers continuous", "continuous", "libraries", asks=GENERATING_ASKS)


def litserve(workers: int = 2, wait_ms: float = 2) -> Small:
    return Small("litserve 0.2.19", "litserve", "litserve", batching(workers, wait_ms))


def mosec(workers: int = 2, wait_ms: float = 2) -> Small:
    settings = {"MOSEC_ADDRESS": "127.0.0.1", "MOSEC_TIMEOUT": "60000", "MOSEC_LOG_LEVEL": "warning"}
    return Small("mosec 0.9.8", "mosec", "mosec", batching(workers, wait_ms), settings, ready="/")


def batching(workers: int, wait_ms: float) -> tuple[str, ...]:
    """Worker processes, and how long a request may wait for others."""
    return ("--workers", str(workers), "--wait-ms", str(wait_ms))


def python(home: str) -> str:
    return str(venv(home) / "bin/python")


def make_home(home: str) -> None:
    make_venv(home, PINS[home], lambda folder: pip_install(folder, *PINS[home]))


def onnx_folder(task: str, model: Path) -> Path:
    """Another for a checkpoint that was written anew."""
    state = (model / "model.safetensors").stat()
    return RESULTS / "onnx" / f"{task}-{zlib.crc32(f'{model} {state.st_size} {state.st_mtime_ns}'.encode()):08x}"


def onnx_file(task: str, model: Path, int8: bool) -> Path:
    return onnx_folder(task, model) / ("int8/model.onnx" if int8 else "float32/model.onnx")


def exported(task: str, model: Path) -> None:
    """Make the files of `onnx_file` where they are not there, in the environment of onnxruntime."""
    make_home("onnxruntime")
    folder = onnx_folder(task, model)
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
        made = Path(unfinished) / folder.name
        files = [made / kind / "model.onnx" for kind in ("float32", "int8")]
        for file in files:
            file.parent.mkdir(parents=True)
        command = [python("onnxruntime"), "-m", "loadtests.peers.servers.export", "--task", task, "--model", str(model)]
        command += ["--output", str(files[0]), "--int8", str(files[1])]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.replace(made, folder)
