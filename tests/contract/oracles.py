"""What the replies must equal: transformers pipelines, plain modules and sentence-transformers, alone, in fp32."""

import warnings
from collections.abc import Callable, Mapping
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
        self._loaded: dict[tuple[str, str], Any] = {}

    def tokenizer(self, name: str) -> Any:
        return self._load("tokenizer", name, transformers.AutoTokenizer.from_pretrained)

    def fresh_tokenizer(self, name: str, **options: Any) -> Any:
        """A tokenizer of its own, for a test that changes its settings."""
        return transformers.AutoTokenizer.from_pretrained(self._folders[name], **options)

    def module(self, name: str, head: str = "ForSequenceClassification") -> Any:
        kind = getattr(transformers, f"AutoModel{head}")
        return self._load(head, name, lambda path: kind.from_pretrained(path, dtype=torch.float32).eval())

    def pipeline(self, task: str, name: str) -> Callable[..., Any]:
        made = self._load(task, name, lambda path: transformers.pipeline(task, model=str(path), device="cpu"))

        def quiet(*arguments: Any, **options: Any) -> Any:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return made(*arguments, **options)

        return quiet

    def sentences(self, name: str) -> SentenceTransformer:
        return self._load("sentences", name, lambda path: SentenceTransformer(str(path), device="cpu"))

    def cross(self, name: str) -> CrossEncoder:
        return self._load("cross", name, lambda path: CrossEncoder(str(path), device="cpu"))

    def encode(self, name: str, text: str, pair: str | None = None, **options: Any) -> Any:
        return self.tokenizer(name)(text, pair, return_tensors="pt", **options)

    def logits(self, name: str, text: str, pair: str | None = None) -> np.ndarray:
        """Logits of the sequence classifier, ``[labels]``."""
        return self.run(name, self.encode(name, text, pair))

    def run(self, name: str, encoded: Any, head: str = "ForSequenceClassification") -> np.ndarray:
        with torch.inference_mode():
            logits = self.module(name, head)(**encoded).logits[0]
        return np.asarray(logits.float().numpy())

    def classified(self, name: str, text: str, pair: str | None = None) -> dict[str, float]:
        """Raw logit of each label."""
        return self.named(name, self.logits(name, text, pair))

    def named(self, name: str, logits: np.ndarray) -> dict[str, float]:
        labels = self.module(name).config.id2label
        return {labels[index]: float(value) for index, value in enumerate(logits)}

    def _load(self, kind: str, name: str, make: Callable[[Path], Any]) -> Any:
        if (kind, name) not in self._loaded:
            self._loaded[kind, name] = make(self._folders[name])
        return self._loaded[kind, name]
