"""llama.cpp's own server, as xllamacpp ships it: the model's values in float32 or bfloat16, in 8 bits, or in the 4 bits
that they were in when they were published.

Its files of 8 bits and more are made of that one, value for value, as the checkpoint is that the other servers get.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtests.generating import Passage
from loadtests.generators import smollm2_file
from loadtests.models import RESULTS, in_place
from loadtests.peers.base import BOTH_DTYPES, ROOT, Ask, make_venv, pip_install, run_python, venv

VERSION = "2026.10.11549"
PINS = (f"xllamacpp=={VERSION}", "gguf==0.19.0")
HOME = "llamacpp"
WINDOWS = 32 * 1024  # tokens of all slots


def completion(asked: Passage) -> dict[str, Any]:
    fixed = {"temperature": 0, "ignore_eos": True, "return_tokens": True}
    return {**fixed, "prompt": asked.text, "n_predict": asked.new_tokens}


# After a stream it closes the connection without having said so.
ASKS = {"generate": Ask("/completion", completion, lambda reply: reply["tokens"], ("Connection: close",))}


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """``bits``: 8 or 4 whatever the dtype, None for the dtype's own. ``slots``: requests at a time."""

    bits: int | None = None
    slots: int = 32
    ready: str = "/health"
    asks: Mapping[str, Ask] = field(default_factory=lambda: ASKS)
    dtypes: Sequence[str] = BOTH_DTYPES

    @property
    def name(self) -> str:
        return f"llama.cpp (xllamacpp {VERSION})" + (f" {self.bits} bits" if self.bits else "")

    @property
    def exact(self) -> bool:
        return self.bits is None

    def prepare(self, task: str, model: Path) -> None:
        make_venv(HOME, PINS, lambda home: pip_install(home, *PINS))
        for kind in () if self.bits == 4 else ("q8_0",) if self.bits else BOTH_DTYPES:
            in_place(folder(kind), lambda unfinished, kind=kind: convert(kind, unfinished))

    def command(self, task: str, model: Path, dtype: str, port: int) -> list[str]:
        return [
            *(
                str(venv(HOME) / "bin/python"),
                "-m",
                "loadtests.peers.servers.llamacpp",
                "--gguf",
                str(self.file(dtype)),
            ),
            *(
                "--slots",
                str(self.slots),
                "--tokens",
                str(WINDOWS),
                "--cache",
                "f32" if self.exact and dtype == "float32" else "f16",
            ),
            *("--port", str(port)),
        ]

    def file(self, dtype: str) -> Path:
        return smollm2_file() if self.bits == 4 else folder("q8_0" if self.bits else dtype) / "model.gguf"

    def environment(self) -> Mapping[str, str]:
        return {"PYTHONPATH": str(ROOT)}


def folder(kind: str) -> Path:
    return RESULTS / "gguf" / kind


def convert(kind: str, unfinished: Path) -> None:
    script = "loadtests.peers.servers.requantize"
    run_python(HOME, script, "--source", smollm2_file(), "--kind", kind, "--output", unfinished / "model.gguf")
