"""The tasks by the libraries' own calls: transformers, and sentence-transformers for embed and rerank."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer

from loadtests.peers.servers.batches import TOP_K, ranked
from loadtests.peers.servers.options import TRANSLATING

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
    if task in TRANSLATING:
        return translate(model, kind)
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


def translate(folder: str, kind: torch.dtype) -> Run:
    """All bodies at once, each by as many beams as the first."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=kind).eval()

    def run(bodies: list[Body]) -> list[Body]:
        texts = [body["text"] for body in bodies]
        features = tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
        count, beams = bodies[0]["max_new_tokens"], bodies[0]["beams"]
        with torch.inference_mode():
            found = model.generate(
                **features, min_new_tokens=count, max_new_tokens=count, num_beams=beams, do_sample=False
            )
        return [{"tokens": tokens} for tokens in found[:, -count:].tolist()]

    return run


def rerank(model: Any, batch_size: int) -> Run:
    def run(bodies: list[Body]) -> list[Body]:
        pairs = [(body["query"], document) for body in bodies for document in body["documents"]]
        scores = iter(model.predict(pairs, batch_size=batch_size, show_progress_bar=False).tolist())
        return [ranked(list(itertools.islice(scores, len(body["documents"])))) for body in bodies]

    return run
