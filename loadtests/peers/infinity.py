"""infinity-emb 0.0.78: its torch engine with BetterTransformer, as it comes, and its optimum engine on ONNX.

BetterTransformer gives up padding on a CPU and is on unless switched off. It needs a transformers below 4.49: with a
later one the server does not start, and without BetterTransformer it is a quarter slower here. The optimum engine makes
no ONNX file by itself: it gets the one of `small.exported`, and fuses its operators at the first start.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtests.peers.base import (
    BOTH_DTYPES,
    MODEL_NAME,
    Ask,
    cohere_rerank,
    make_venv,
    openai_embed,
    pip_install,
    top,
    venv,
)
from loadtests.peers.small import exported, onnx_file, onnx_folder

# torch is pinned to its CPU build: another would bring gigabytes of GPU libraries.
PINS = (
    "infinity-emb[server]==0.0.78",
    "torch==2.13.0+cpu",
    "transformers==4.48.3",
    "sentence-transformers==3.4.1",
    "optimum==1.23.3",
    "typer==0.12.5",
    "click==8.1.8",
    "einops",
    "pyarrow<20",
    "datasets<4",
)


ONNX_PINS = ("onnxruntime==1.32.0", "onnx==1.23.2")
TORCH = ("--engine", "torch", "--bettertransformer")
# Without a warm-up, whose texts are longer than the model takes: its classifier on ONNX does not cut them.
OPTIMUM = ("--engine", "optimum", "--pooling-method", "mean", "--no-model-warmup")
ASKS = {
    "embed": openai_embed("/embeddings"),
    "classify": Ask(
        "/classify",
        lambda text: {"model": MODEL_NAME, "input": [text]},
        lambda reply: top(reply["data"][0], "label"),
    ),
    "rerank": cohere_rerank("/rerank"),
}


@dataclass(frozen=True, slots=True)
class Infinity:
    optimum: bool = False
    ready: str = "/health"
    exact: bool = True

    @property
    def asks(self) -> Mapping[str, Ask]:
        """Its cross-encoder on ONNX leaves out the segments' numbers, which changes what a BERT answers."""
        return {task: ask for task, ask in ASKS.items() if not (self.optimum and task == "rerank")}

    @property
    def name(self) -> str:
        return "infinity-emb 0.0.78" + (" optimum" if self.optimum else "")

    @property
    def home(self) -> str:
        return "infinity-optimum" if self.optimum else "infinity"

    @property
    def dtypes(self) -> Sequence[str]:
        return ("float32",) if self.optimum else BOTH_DTYPES

    def prepare(self, task: str, model: Path) -> None:
        pins = PINS + ONNX_PINS if self.optimum else PINS
        make_venv(self.home, pins, lambda home: pip_install(home, *pins))
        if self.optimum:
            exported(task, model)
            beside_onnx(task, model)

    def command(self, task: str, model: Path, dtype: str, port: int) -> list[str]:
        engine = OPTIMUM if self.optimum else TORCH
        folder = optimum_folder(task, model) if self.optimum else model
        return [
            *(str(venv(self.home) / "bin/infinity_emb"), "v2", "--model-id", str(folder), *engine),
            *("--served-model-name", MODEL_NAME, "--device", "cpu", "--dtype", dtype),
            *("--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"),
        ]

    def environment(self) -> Mapping[str, str]:
        home = str(venv(self.home))
        return {"DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0", "INFINITY_HOME": home}


def optimum_folder(task: str, model: Path) -> Path:
    return onnx_folder(task, model) / "infinity"


def beside_onnx(task: str, model: Path) -> None:
    """The checkpoint with the ONNX file in place of its weights."""
    folder = optimum_folder(task, model)
    if not (folder / "model.onnx").exists():
        shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
        shutil.copy(onnx_file(task, model, int8=False), folder / "model.onnx")
