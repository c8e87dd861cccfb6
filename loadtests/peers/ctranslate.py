"""CTranslate2 4.8.5 with the weights of the same checkpoint, behind the batching server of stock transformers."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadtests.models import RESULTS, in_place
from loadtests.peers.base import ROOT, Ask, make_venv, pip_install, run_python
from loadtests.peers.small import STOCK, TRANSLATING_ASKS, WEB, Small

VERSION = "4.8.5"
PINS = (*STOCK, *WEB, f"ctranslate2=={VERSION}")
HOME = "ctranslate2"


@dataclass(frozen=True, slots=True)
class CTranslate2:
    """``workers``: batches at a time, each on its share of the cores."""

    int8: bool = False
    workers: int = 2
    ready: str = "/health"
    asks: Mapping[str, Ask] = field(default_factory=lambda: TRANSLATING_ASKS)
    dtypes: Sequence[str] = ("float32",)

    @property
    def name(self) -> str:
        return f"CTranslate2 {VERSION}" + (" int8" if self.int8 else "") + ("" if self.workers > 1 else " one worker")

    @property
    def exact(self) -> bool:
        return not self.int8

    def prepare(self, task: str, model: Path) -> None:
        make_venv(HOME, PINS, lambda home: pip_install(home, *PINS))
        in_place(converted(model), lambda unfinished: convert(model, unfinished))

    def command(self, task: str, model: Path, dtype: str, port: int) -> list[str]:
        own = ("--converted", str(converted(model)), "--compute", "int8" if self.int8 else dtype)
        server = Small(self.name, "ct2", HOME, (*own, "--workers", str(self.workers)))
        return server.command(task, model, dtype, port)

    def environment(self) -> Mapping[str, str]:
        return {"PYTHONPATH": str(ROOT)}


def converted(model: Path) -> Path:
    """Another for a checkpoint that was written anew."""
    state = (model / "model.safetensors").stat()
    return RESULTS / "ctranslate2" / f"{model.name}-{zlib.crc32(f'{state.st_size} {state.st_mtime_ns}'.encode()):08x}"


def convert(model: Path, unfinished: Path) -> None:
    converter = "ctranslate2.converters.transformers"
    run_python(HOME, converter, "--model", model, "--output_dir", unfinished, "--force")
