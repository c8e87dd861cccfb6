"""The tasks of the comparisons: what is asked, what the model alone answers, and when a server's answer is that.

Imports torch only where a model is called.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from loadtests.generating import Passage, continued_alone, passages, tokens_fault, translated_alone
from loadtests.generators import seq2seq, smollm2
from loadtests.models import made, minilm_folder
from loadtests.texts import short, text, texts

LEAST_COSINE = 0.999
TOLERANCES = {"float32": 0.02, "bfloat16": 0.06}
# Of log probabilities. In bfloat16 the logits themselves, of about 20, are an eighth apart.
TOKEN_TOLERANCES = {"float32": 0.02, "bfloat16": 0.5}
BEAM_TOLERANCES = {"float32": 0.02}
DOCUMENTS = 8
MASK = "[MASK]"


@dataclass(frozen=True, slots=True)
class Ranking:
    """A query, and the documents to be put in order."""

    query: str
    documents: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.query) + sum(map(len, self.documents))


# One request, and what a server answers: `Vector` of embed; `Best` of classify (a label) and fill-mask (a token's
# number); of rerank the documents' indices, the best first; of the generating tasks the tokens' numbers.
Asked = str | Ranking | Passage
Vector = Sequence[float]
Best = tuple[str | int, float]


@dataclass(frozen=True, slots=True)
class Task:
    """``about``: the model in words. ``model``: makes its folder when it is not there.

    ``alone``: what the model answers to one request by itself, in float32, for ``fault`` to compare with: it says how a
    server's answer differs by more than a tolerance of scores, None when it does not. ``tolerances``: by the dtypes
    that the task is compared in. ``load``: more fields of the requests that are measured, not checked. ``tokens``: of
    each reply to those, a stream of events; ``think_s``: a client's mean pause before each.
    """

    name: str
    about: str
    model: Callable[[], Path]
    asked: Callable[[str, int], list[Any]]
    alone: Callable[[Path, Sequence[Any]], list[Any]]
    fault: Callable[[Any, Any, float], str | None]
    tolerances: Mapping[str, float] = field(default_factory=lambda: TOLERANCES)
    load: Mapping[str, Any] = field(default_factory=dict)
    tokens: int = 0
    think_s: float = 0.0


def masked(mix: str, count: int, seed: int = 0) -> list[str]:
    """Texts with a mask in place of one word."""
    rng = random.Random(seed)
    found = []
    for one in texts(mix, count, seed):
        words = one.split()
        words[rng.randrange(len(words))] = MASK
        found.append(" ".join(words))
    return found


def rankings(mix: str, count: int, seed: int = 0) -> list[Ranking]:
    """Short queries, each with `DOCUMENTS` documents of the mix."""
    rng = random.Random(seed)
    documents = texts(mix, count * DOCUMENTS, seed)
    return [
        Ranking(text(rng, short(rng)), tuple(documents[at : at + DOCUMENTS]))
        for at in range(0, len(documents), DOCUMENTS)
    ]


def vectors_alone(model: Path, given: Sequence[str]) -> list[Vector]:
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(str(model), device="cpu")
    return [encoder.encode(one).tolist() for one in given]


def labels_alone(model: Path, given: Sequence[str]) -> list[dict[str, float]]:
    """Probabilities by label."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    classifier = AutoModelForSequenceClassification.from_pretrained(model).eval()
    with torch.inference_mode():
        scores = [classifier(**tokenizer(one, return_tensors="pt")).logits[0].softmax(-1).tolist() for one in given]
    return [{classifier.config.id2label[at]: score for at, score in enumerate(one)} for one in scores]


def tokens_alone(model: Path, given: Sequence[str]) -> list[dict[int, float]]:
    """Probabilities by token at the mask."""
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    masked_lm = AutoModelForMaskedLM.from_pretrained(model).eval()
    found = []
    with torch.inference_mode():
        for one in given:
            features = tokenizer(one, return_tensors="pt")
            [at] = (features["input_ids"][0] == tokenizer.mask_token_id).nonzero()[0].tolist()
            found.append(dict(enumerate(masked_lm(**features).logits[0, at].softmax(-1).tolist())))
    return found


def scores_alone(model: Path, given: Sequence[Ranking]) -> list[list[float]]:
    """Logits of a query with each document, one pair at a time."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    encoder = AutoModelForSequenceClassification.from_pretrained(model).eval()

    def score(query: str, document: str) -> float:
        logit: float = encoder(**tokenizer(query, document, return_tensors="pt")).logits.item()
        return logit

    with torch.inference_mode():
        return [[score(one.query, document) for document in one.documents] for one in given]


def vector_fault(found: Vector, alone: Vector, tolerance: float) -> str | None:
    """By the cosine, whatever the tolerance."""
    if len(found) != len(alone):
        return f"{len(found)} dimensions, not {len(alone)}"
    near = cosine(found, alone)
    return None if near >= LEAST_COSINE else f"cosine {near:.5f}"


def best_fault(found: Best, alone: Mapping[Any, float], tolerance: float, relative: bool = False) -> str | None:
    """Of two that are as likely within the tolerance either may be best. ``relative``: to the best one's likelihood."""
    (name, score), best = found, max(alone.values())
    bound = tolerance * (best if relative else 1.0)
    if name not in alone:
        return f"unknown: {name!r}"
    if not best - alone[name] <= bound:
        return f"best is {name!r}, alone {max(alone, key=alone.__getitem__)!r}"
    return None if abs(score - alone[name]) <= tolerance else f"score {score:.3f}, alone {alone[name]:.3f}"


def order_fault(found: Sequence[int], alone: Sequence[float], tolerance: float) -> str | None:
    """Documents whose scores differ by less than the tolerance, as a share of all scores' range, may change places."""
    if sorted(found) != list(range(len(alone))):
        return f"documents {list(found)} of {len(alone)}"
    bound = tolerance * (max(alone) - min(alone))
    lowest = math.inf
    for at in found:
        if alone[at] > lowest + bound:
            wanted = sorted(range(len(alone)), key=alone.__getitem__, reverse=True)
            return f"order {list(found)}, alone {wanted}"
        lowest = min(lowest, alone[at])
    return None


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    dot: float = sum(x * y for x, y in zip(a, b, strict=True))
    norms: float = math.hypot(*a) * math.hypot(*b)
    return dot / norms if norms else 0.0


CONTINUED = 64
TRANSLATED = 40
BEAMS = 4
THINK_S = 0.5
FAMILIES = {
    "translate": ("marian", "Marian of opus-mt's size"),
    "t5": ("t5", "T5-small's size"),
    "bart": ("bart", "BART-base's size"),
}


def translating(name: str, beams: int) -> Task:
    """A task of an encoder-decoder, for clients that come at random."""
    family, about = FAMILIES[name]
    search = f"{beams} beams" if beams > 1 else "greedy"
    return Task(
        name if beams == 1 else f"{name}-beams",
        f"{about}, random weights, {search}, {TRANSLATED} tokens, clients pause {THINK_S:g} s on the average",
        partial(seq2seq, family),
        partial(passages, new_tokens=TRANSLATED, beams=beams),
        translated_alone,
        tokens_fault,
        TOKEN_TOLERANCES if beams == 1 else BEAM_TOLERANCES,
        think_s=THINK_S,
    )


TASKS = {
    task.name: task
    for task in (
        Task("embed", "all-MiniLM-L6-v2", minilm_folder, texts, vectors_alone, vector_fault),
        Task(
            "classify",
            "BERT-base, 3 classes, random weights",
            partial(made, "classify"),
            texts,
            labels_alone,
            best_fault,
        ),
        Task(
            "fill-mask",
            "BERT of MiniLM's size, 30522 tokens, random weights",
            partial(made, "fill-mask"),
            masked,
            tokens_alone,
            partial(best_fault, relative=True),
        ),
        Task(
            "rerank",
            f"BERT-small cross-encoder, {DOCUMENTS} documents a request, random weights",
            partial(made, "rerank"),
            rankings,
            scores_alone,
            order_fault,
        ),
        Task(
            "generate",
            f"SmolLM2-135M, greedy, {CONTINUED} tokens, streamed",
            smollm2,
            partial(passages, new_tokens=CONTINUED),
            continued_alone,
            tokens_fault,
            TOKEN_TOLERANCES,
            {"stream": True},
            CONTINUED,
        ),
        *(translating(name, beams) for name in FAMILIES for beams in (1, BEAMS)),
    )
}
