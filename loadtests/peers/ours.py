"""padserve itself, as the other servers are measured."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtests.generating import Passage
from loadtests.peers.base import BOTH_DTYPES, TRANSLATING, Ask, top

SCRIPT = str(Path(sys.executable).with_name("padserve"))


def passage(asked: Passage) -> dict[str, Any]:
    return {"inputs": asked.text, "max_new_tokens": asked.new_tokens, "details": True}


def exactly(asked: Passage) -> dict[str, Any]:
    """No end token before as many tokens as are asked for."""
    return {**passage(asked), "min_new_tokens": asked.new_tokens, "num_beams": asked.beams}


def tokens(reply: Any) -> list[int]:
    found: list[int] = reply["results"][0]["outputs"][0]["token_ids"]
    return found


ASKS = {
    "embed": Ask("/embed", lambda text: {"inputs": text}, lambda reply: reply["results"][0]["embedding"]),
    "classify": Ask(
        "/classify", lambda text: {"inputs": text}, lambda reply: top(reply["results"][0]["labels"], "label")
    ),
    "fill-mask": Ask(
        "/fill-mask", lambda text: {"inputs": text}, lambda reply: top(reply["results"][0]["masks"][0], "token")
    ),
    "rerank": Ask(
        "/rerank",
        lambda asked: {"query": asked.query, "documents": asked.documents},
        lambda reply: [one["index"] for one in reply["results"]],
    ),
    "generate": Ask("/generate", lambda asked: {**passage(asked), "ignore_eos": True}, tokens),
    **{
        task: Ask("/translate" if task.startswith("translate") else "/generate", exactly, tokens)
        for task in TRANSLATING
    },
}


@dataclass(frozen=True, slots=True)
class Padserve:
    """``settings``: more environment, such as ``PADSERVE_WORKERS``. ``own_dtype``: in place of the comparison's."""

    settings: Mapping[str, str] = field(default_factory=dict)
    name: str = "padserve"
    ready: str = "/readyz"
    asks: Mapping[str, Ask] = field(default_factory=lambda: ASKS)
    dtypes: Sequence[str] = BOTH_DTYPES
    exact: bool = True
    own_dtype: str = ""

    def prepare(self, task: str, model: Path) -> None:
        """It is installed: this runs in its environment."""

    def command(self, task: str, model: Path, dtype: str, port: int) -> list[str]:
        return [
            *(
                SCRIPT,
                "serve",
                "--model",
                f"{self.asks[task].path[1:]}={model}",
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
            ),
            *("--dtype", self.own_dtype or dtype, "--log-level", "warning"),
        ]

    def environment(self) -> Mapping[str, str]:
        return self.settings
