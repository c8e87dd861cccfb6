"""What the replies must equal: transformers pipelines, plain modules and sentence-transformers, alone, in fp32."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer

TOLERANCE = 1e-4


class Oracles:
    """Loads each checkpoint once, on first use; every answer is for one input run by itself."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = folders
        self._loaded: dict[tuple[str, ...], Any] = {}

    def tokenizer(self, name: str) -> Any:
        return self._load(("tokenizer", name), lambda path: transformers.AutoTokenizer.from_pretrained(path))

    def fresh_tokenizer(self, name: str, **options: Any) -> Any:
        """A tokenizer of its own, for a test that changes its settings."""
        return transformers.AutoTokenizer.from_pretrained(self._folders[name], **options)

    def module(self, name: str, head: str = "ForSequenceClassification") -> Any:
        kind = getattr(transformers, f"AutoModel{head}")
        return self._load(("module", name, head), lambda path: kind.from_pretrained(path, dtype=torch.float32).eval())

    def pipeline(self, task: str, name: str, **options: Any) -> Any:
        key = ("pipeline", task, name, repr(options))
        return self._load(key, lambda path: transformers.pipeline(task, model=str(path), device="cpu", **options))

    def sentences(self, name: str) -> SentenceTransformer:
        return self._load(("sentences", name), lambda path: SentenceTransformer(str(path), device="cpu"))

    def cross(self, name: str) -> CrossEncoder:
        return self._load(("cross", name), lambda path: CrossEncoder(str(path), device="cpu"))

    def encode(self, name: str, text: str, pair: str | None = None, **options: Any) -> Any:
        return self.tokenizer(name)(text, pair, return_tensors="pt", **options)

    def logits(self, name: str, text: str, pair: str | None = None, **options: Any) -> np.ndarray:
        """Logits of the sequence classifier, ``[labels]``."""
        return self.run(name, self.encode(name, text, pair, **options))

    def run(self, name: str, encoded: Any) -> np.ndarray:
        with torch.inference_mode():
            logits = self.module(name)(**encoded).logits[0]
        return np.asarray(logits.float().numpy())

    def _load(self, key: tuple[str, ...], make: Any) -> Any:
        if key not in self._loaded:
            self._loaded[key] = make(self._folders[key[-1] if key[0] in ("tokenizer", "sentences", "cross") else self._name(key)])
        return self._loaded[key]

    @staticmethod
    def _name(key: tuple[str, ...]) -> str:
        return key[1] if key[0] == "module" else key[2]
