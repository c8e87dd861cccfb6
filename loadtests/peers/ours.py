"""padserve itself, as the other servers are measured."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCRIPT = str(Path(sys.executable).with_name("padserve"))


@dataclass(frozen=True, slots=True)
class Padserve:
    """``settings``: more environment, such as ``PADSERVE_WORKERS``."""

    settings: Mapping[str, str] = field(default_factory=dict)
    name: str = "padserve"
    ready: str = "/readyz"
    embed: str = "/embed"

    def install(self) -> None:
        """It is installed: this runs in its environment."""

    def command(self, model: str, dtype: str, port: int) -> list[str]:
        return [
            *(SCRIPT, "serve", "--model", f"embed={model}", "--host", "127.0.0.1", "--port", str(port)),
            *("--dtype", dtype, "--log-level", "warning"),
        ]

    def environment(self) -> Mapping[str, str]:
        return self.settings

    def body(self, text: str) -> bytes:
        return json.dumps({"inputs": text}).encode()

    def vector(self, reply: dict[str, Any]) -> list[float]:
        vector: list[float] = reply["results"][0]["embedding"]
        return vector
