"""A checkpoint by transformers as it comes."""

from typing import Any

import torch
import transformers
from transformers import AutoTokenizer

from loadtests.peers.servers.batches import Array, Batches, Features

HEADS = {
    "embed": "AutoModel",
    "classify": "AutoModelForSequenceClassification",
    "rerank": "AutoModelForSequenceClassification",
    "fill-mask": "AutoModelForMaskedLM",
}


def checkpoint(task: str, folder: str, dtype: str = "float32", **more: Any) -> Any:
    """``more``: as `from_pretrained` takes it."""
    model = getattr(transformers, HEADS[task]).from_pretrained(folder, dtype=getattr(torch, dtype), **more)
    return model.eval()


def batches(task: str, folder: str, dtype: str) -> Batches:
    model = checkpoint(task, folder, dtype)

    def forward(features: Features, places: Array | None) -> Array:
        with torch.inference_mode():
            found = model(**{name: torch.from_numpy(values) for name, values in features.items()})[0]
            if places is not None:
                found = found[torch.arange(len(places)), torch.from_numpy(places)]
            array: Array = found.float().numpy()
            return array

    return Batches(task, AutoTokenizer.from_pretrained(folder), model.config.id2label, forward)
