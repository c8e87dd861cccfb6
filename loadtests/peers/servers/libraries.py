"""The tasks by the libraries' own calls: pipelines of transformers, and sentence-transformers for embed and rerank."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer

from loadtests.peers.servers.batches import TOP_K, ranked

Body = dict[str, Any]
Run = Callable[[list[Body]], list[Body]]
DEVICE = "cpu"


def loaded(task: str, model: str, dtype: str, batch_size: int) -> Run:
    """Answers bodies of a task, ``batch_size`` texts at a time."""
    kind = getattr(torch, dtype)
    if task == "embed":
        return embed(SentenceTransformer(model, device=DEVICE, model_kwargs={"dtype": kind}), batch_size)
    if task == "rerank":
        return rerank(CrossEncoder(model, device=DEVICE, model_kwargs={"dtype": kind}), batch_size)
    if task == "classify":
        return classify(transformers.pipeline("text-classification", model, dtype=kind, device=DEVICE), batch_size)
    return fill_mask(transformers.pipeline("fill-mask", model, dtype=kind, device=DEVICE), batch_size)


def embed(model: Any, batch_size: int) -> Run:
    def run(bodies: list[Body]) -> list[Body]:
        vectors = model.encode([body["text"] for body in bodies], batch_size=batch_size, show_progress_bar=False)
        return [{"embedding": vector.tolist()} for vector in vectors]

    return run


def classify(pipeline: Any, batch_size: int) -> Run:
    def run(bodies: list[Body]) -> list[Body]:
        found = pipeline([body["text"] for body in bodies], batch_size=batch_size, top_k=None)
        return [{"labels": labels} for labels in found]

    return run


def fill_mask(pipeline: Any, batch_size: int) -> Run:
    def run(bodies: list[Body]) -> list[Body]:
        found = pipeline([body["text"] for body in bodies], batch_size=batch_size, top_k=TOP_K)
        return [{"tokens": tokens} for tokens in (found if isinstance(found[0], list) else [found])]

    return run


def rerank(model: Any, batch_size: int) -> Run:
    def run(bodies: list[Body]) -> list[Body]:
        pairs = [(body["query"], document) for body in bodies for document in body["documents"]]
        scores = iter(model.predict(pairs, batch_size=batch_size, show_progress_bar=False).tolist())
        return [ranked(list(itertools.islice(scores, len(body["documents"])))) for body in bodies]

    return run
