"""infinity-emb 0.0.78: its torch engine with BetterTransformer, as it comes.

BetterTransformer gives up padding on a CPU and is on unless switched off. It needs a transformers below 4.49: with a
later one the server does not start, and without BetterTransformer it is a quarter slower here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtests.peers.base import MODEL_NAME, make_venv, openai_body, openai_vector, pip_install, venv

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


@dataclass(frozen=True, slots=True)
class Infinity:
    name: str = "infinity-emb 0.0.78"
    ready: str = "/health"
    embed: str = "/embeddings"

    def install(self) -> None:
        make_venv("infinity", PINS, self._fill)

    def _fill(self, home: Path) -> None:
        pip_install(home, *PINS)

    def command(self, model: str, dtype: str, port: int) -> list[str]:
        return [
            *(str(venv("infinity") / "bin/infinity_emb"), "v2", "--model-id", model, "--engine", "torch"),
            *("--served-model-name", MODEL_NAME, "--device", "cpu", "--dtype", dtype, "--bettertransformer"),
            *("--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"),
        ]

    def environment(self) -> Mapping[str, str]:
        home = str(venv("infinity"))
        return {"DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0", "INFINITY_HOME": home}

    def body(self, text: str) -> bytes:
        return openai_body(text)

    def vector(self, reply: dict[str, Any]) -> list[float]:
        return openai_vector(reply)
