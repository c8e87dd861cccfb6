"""padserve itself, as the other servers are measured."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtests.peers.base import Peer

SCRIPT = str(Path(sys.executable).with_name("padserve"))


@dataclass(frozen=True, slots=True)
class Padserve(Peer):
    def fields(self, text: str) -> dict[str, Any]:
        return {"inputs": text}

    def vector(self, reply: dict[str, Any]) -> list[float]:
        vector: list[float] = reply["results"][0]["embedding"]
        return vector


def padserve(**environment: str) -> Padserve:
    """``environment``: more settings, such as ``PADSERVE_WORKERS``."""
    return Padserve(
        name="padserve",
        command=[
            *(SCRIPT, "serve", "--model", "embed={model}", "--port", "{port}", "--dtype", "{dtype}"),
            *("--log-level", "warning"),
        ],
        ready="/readyz",
        embed="/embed",
        dtypes={"float32": "float32", "bfloat16": "bfloat16"},
        environment=environment,
    )
