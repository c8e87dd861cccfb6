"""What is asked of each task, and how a reply shows that it belongs to its request. Knows nothing of Locust."""

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.texts import bimodal, lognormal, long, short, text

Body = dict[str, Any]
Results = list[dict[str, Any]]
MASK = "[MASK]"
LABELS = ("sport", "law", "art", "money", "health", "travel")
NAMES = ("Maria Silva", "John Smith", "Anna Kowalska")


@dataclass(frozen=True, slots=True)
class Case:
    """``fault``: what in a reply does not fit its request, None when all does.

    ``numbers``: the reply in comparable form, in the order of the request's inputs.
    """

    body: Callable[[random.Random], Body]
    fault: Callable[[Body, Results], str | None]
    numbers: Callable[[Body, Results], list[float]]


def judged(case: Case, body: Body, results: Results) -> str | None:
    """`Case.fault`, where a reply of another shape than the contract's is a fault too."""
    try:
        if len(results) != expected_results(body):
            return f"{len(results)} results for {expected_results(body)} inputs"
        return case.fault(body, results)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return f"a reply of another shape: {error!r}"


def expected_results(body: Body) -> int:
    if "documents" in body:
        return len(body["documents"])
    return len(body["inputs"]) if isinstance(body["inputs"], list) else 1


def differs(given: Sequence[float], expected: Sequence[float], tolerance: float) -> str | None:
    """How a reply's numbers differ from those of the same request asked alone, None when they do not."""
    if len(given) != len(expected):
        return f"{len(given)} numbers, alone {len(expected)}"
    worst = max((abs(a - b) if math.isfinite(a) else math.inf for a, b in zip(given, expected, strict=True)), default=0)
    return f"differs from the same request asked alone by {worst:.2g}" if worst > tolerance else None


def singles(body: Body) -> Iterator[Body]:
    """The requests that ask for each input of a list by itself."""
    if isinstance(body.get("inputs"), list):
        for one in body["inputs"]:
            yield {**body, "inputs": one}
    else:
        yield body


def _several(rng: random.Random, mix: Callable[[random.Random], int], most: int) -> list[str]:
    return [text(rng, mix(rng)) for _ in range(rng.randint(1, most))]


def _too_few_tokens(body: Body, results: Results) -> str | None:
    """Each word is a token at least, and each token stands for a character at least, but for the special ones."""
    inputs = body["inputs"] if isinstance(body["inputs"], list) else [body["inputs"]]
    for given, one in zip(inputs, results, strict=True):
        if not len(given.split()) <= one["tokens"] <= len(given) + 8:
            return f"{one['tokens']} tokens for a text of {len(given.split())} words"
    return None


def _best_first(scores: Sequence[float]) -> bool:
    return all(a >= b for a, b in itertools.pairwise(scores))


def _fill_mask_body(rng: random.Random) -> Body:
    return {"inputs": f"{text(rng, short(rng))} {MASK} {text(rng, 3)}", "top_k": 3}


def _fill_mask_fault(body: Body, results: Results) -> str | None:
    (mask,) = results[0]["masks"]
    before, after = body["inputs"].split(f" {MASK} ")
    for one in mask:
        if not (one["sequence"].startswith(before) and one["sequence"].endswith(after)):
            return "a sequence of another request"
    return None if len(mask) == 3 and _best_first([one["score"] for one in mask]) else "not the three best first"


def _fill_mask_numbers(body: Body, results: Results) -> list[float]:
    return [one["score"] for mask in results[0]["masks"] for one in mask]


def _classify_body(rng: random.Random) -> Body:
    return {"inputs": _several(rng, bimodal, 4)}


def _classify_fault(body: Body, results: Results) -> str | None:
    for one in results:
        scores = [label["score"] for label in one["labels"]]
        if not scores or not _best_first(scores) or not all(0 <= score <= 1 for score in scores):
            return f"no labels with falling scores: {scores}"
    return _too_few_tokens(body, results)


def _classify_numbers(body: Body, results: Results) -> list[float]:
    ordered = (sorted(one["labels"], key=lambda label: str(label["label"])) for one in results)
    return [label["score"] for labels in ordered for label in labels]


def _zero_shot_body(rng: random.Random) -> Body:
    return {"inputs": text(rng, lognormal(rng)), "labels": rng.sample(LABELS, 3)}


def _zero_shot_fault(body: Body, results: Results) -> str | None:
    labels = results[0]["labels"]
    if sorted(one["label"] for one in labels) != sorted(body["labels"]):
        return "labels of another request"
    return None if _best_first([one["score"] for one in labels]) else "labels that are not best first"


def _zero_shot_numbers(body: Body, results: Results) -> list[float]:
    scores = {one["label"]: one["score"] for one in results[0]["labels"]}
    return [scores[label] for label in body["labels"]]


def _token_classify_body(rng: random.Random) -> Body:
    return {"inputs": f"{text(rng, short(rng))} my name is {rng.choice(NAMES)} and {text(rng, lognormal(rng))}"}


def _token_classify_fault(body: Body, results: Results) -> str | None:
    for one in results[0]["entities"]:
        if not one["text"] or body["inputs"][one["start"] : one["end"]] != one["text"]:
            return "an entity that is not in the text at its offsets"
    return _too_few_tokens(body, results)


def _token_classify_numbers(body: Body, results: Results) -> list[float]:
    return [one[key] for one in results[0]["entities"] for key in ("start", "end", "score")]


def _embed_body(rng: random.Random) -> Body:
    return {"inputs": _several(rng, lognormal, 3)}


def _embed_fault(body: Body, results: Results) -> str | None:
    for one in results:
        norm = math.sqrt(sum(x * x for x in one["embedding"]))
        if not abs(norm - 1) < 1e-2:
            return f"a vector of length {norm:.3f}, expected 1"
    return _too_few_tokens(body, results)


def _embed_numbers(body: Body, results: Results) -> list[float]:
    return [x for one in results for x in one["embedding"]]


def _rerank_body(rng: random.Random) -> Body:
    documents = [text(rng, lognormal(rng)) for _ in range(rng.randint(2, 5))]
    return {"query": text(rng, short(rng)), "documents": documents, "return_documents": True}


def _rerank_fault(body: Body, results: Results) -> str | None:
    if sorted(one["index"] for one in results) != list(range(len(body["documents"]))):
        return "not each document once"
    if any(one["document"] != body["documents"][one["index"]] for one in results):
        return "a document of another request"
    return None if _best_first([one["score"] for one in results]) else "documents that are not best first"


def _rerank_numbers(body: Body, results: Results) -> list[float]:
    return [one["score"] for one in sorted(results, key=lambda one: int(one["index"]))]


def _similarity_body(rng: random.Random) -> Body:
    source = text(rng, short(rng))
    sentences = [text(rng, lognormal(rng)) for _ in range(rng.randint(1, 3))]
    sentences.insert(rng.randint(0, len(sentences)), source)
    return {"inputs": {"source": source, "sentences": sentences}}


def _similarity_fault(body: Body, results: Results) -> str | None:
    source, sentences, scores = body["inputs"]["source"], body["inputs"]["sentences"], results[0]["scores"]
    if len(scores) != len(sentences):
        return f"{len(scores)} scores for {len(sentences)} sentences"
    same = scores[sentences.index(source)]
    return None if abs(same - 1) < 1e-2 else f"a text is unlike itself: {same}"


def _similarity_numbers(body: Body, results: Results) -> list[float]:
    return list(results[0]["scores"])


def _tokenize_body(rng: random.Random) -> Body:
    return {"inputs": text(rng, long(rng) if rng.random() < 0.5 else short(rng))}


def _tokenize_fault(body: Body, results: Results) -> str | None:
    given, one = body["inputs"], results[0]
    if not len(one["ids"]) == len(one["tokens"]) == len(one["offsets"]):
        return "ids, tokens and offsets of unlike number"
    covered = "".join(given[start:end] for start, end in one["offsets"])
    return None if covered == given.replace(" ", "") else "offsets that do not cover the words of the text"


def _tokenize_numbers(body: Body, results: Results) -> list[float]:
    return list(results[0]["ids"])


CASES: dict[str, Case] = {
    "fill-mask": Case(_fill_mask_body, _fill_mask_fault, _fill_mask_numbers),
    "classify": Case(_classify_body, _classify_fault, _classify_numbers),
    "zero-shot": Case(_zero_shot_body, _zero_shot_fault, _zero_shot_numbers),
    "token-classify": Case(_token_classify_body, _token_classify_fault, _token_classify_numbers),
    "embed": Case(_embed_body, _embed_fault, _embed_numbers),
    "rerank": Case(_rerank_body, _rerank_fault, _rerank_numbers),
    "similarity": Case(_similarity_body, _similarity_fault, _similarity_numbers),
    "tokenize": Case(_tokenize_body, _tokenize_fault, _tokenize_numbers),
}
