"""The tasks around any forward pass: tokens to arrays padded to the longest, and arrays to answers. Imports no torch.

bodies -> texts or pairs -> token ids -> chunks by length -> forward -> answers, in the order of the bodies
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

Body = dict[str, Any]
Array = np.ndarray[Any, Any]
Features = dict[str, Array]
# The features, and for fill-mask the place of each text's mask, to each text's numbers: for embed the hidden states of
# its tokens, for fill-mask the logits at the mask, else its logits.
Forward = Callable[[Features, Array | None], Array]
Entry = dict[str, Any]

TOP_K = 5
LONGEST = {"embed": 256}
LONGEST_OF_ANY = 512
MOST = 32


class Tokenizer(Protocol):
    pad_token_id: int
    mask_token_id: int

    def __call__(self, *texts: Any, **options: Any) -> Any: ...
    def decode(self, token: int) -> str: ...


class Batches:
    """Answers bodies of a task, at most `MOST` texts or pairs at a time, alike lengths together."""

    def __init__(self, task: str, tokenizer: Tokenizer, labels: dict[int, str], forward: Forward) -> None:
        self.task, self.tokenizer, self.labels, self.forward = task, tokenizer, labels, forward

    def __call__(self, bodies: list[Body]) -> list[Body]:
        entries = self.tokenized(bodies)
        order = sorted(range(len(entries)), key=lambda at: len(entries[at]["input_ids"]))
        answers: list[Any] = [None] * len(entries)
        for start in range(0, len(order), MOST):
            chunk = order[start : start + MOST]
            for at, answer in zip(chunk, self.answered([entries[at] for at in chunk]), strict=True):
                answers[at] = answer
        if self.task != "rerank":
            return answers
        scores = iter(answers)
        return [ranked(list(itertools.islice(scores, len(body["documents"])))) for body in bodies]

    def tokenized(self, bodies: list[Body]) -> list[Entry]:
        if self.task == "rerank":
            pairs = [(body["query"], document) for body in bodies for document in body["documents"]]
            columns = [list(column) for column in zip(*pairs, strict=True)]
        else:
            columns = [[body["text"] for body in bodies]]
        found = self.tokenizer(*columns, truncation=True, max_length=LONGEST.get(self.task, LONGEST_OF_ANY))
        names = ("input_ids", "token_type_ids", "attention_mask")
        return [dict(zip(names, one, strict=True)) for one in zip(*(found[name] for name in names), strict=True)]

    def answered(self, entries: Sequence[Entry]) -> Iterator[Any]:
        features = padded(entries, self.tokenizer.pad_token_id)
        places = None
        if self.task == "fill-mask":
            places = (features["input_ids"] == self.tokenizer.mask_token_id).argmax(axis=1)
        found = self.forward(features, places)
        if self.task == "embed":
            yield from ({"embedding": one} for one in pooled(found, features["attention_mask"]).tolist())
        elif self.task == "rerank":
            yield from found[:, 0].tolist()
        elif self.task == "classify":
            yield from ({"labels": named(one, self.labels)} for one in softmax(found))
        else:
            yield from ({"tokens": self.likeliest(one)} for one in softmax(found))

    def likeliest(self, scores: Array) -> list[Entry]:
        unordered = np.argpartition(-scores, TOP_K)[:TOP_K]
        best = unordered[np.argsort(-scores[unordered])].tolist()
        return [
            {"token": token, "token_str": self.tokenizer.decode(token), "score": float(scores[token])} for token in best
        ]


def padded(entries: Sequence[Entry], pad: int) -> Features:
    longest = max(len(entry["input_ids"]) for entry in entries)
    features = {name: np.zeros((len(entries), longest), np.int64) for name in entries[0]}  # [batch, longest]
    features["input_ids"][:] = pad
    for at, entry in enumerate(entries):
        for name, values in entry.items():
            features[name][at, : len(values)] = values
    return features


def pooled(hidden: Array, mask: Array) -> Array:
    """Unit vectors of the means over the tokens. ``hidden``: [batch, longest, width]."""
    sums: Array = np.einsum("blw,bl->bw", hidden, mask.astype(hidden.dtype))
    sums /= np.linalg.norm(sums, axis=1, keepdims=True)
    return sums


def softmax(logits: Array) -> Array:
    raised: Array = np.exp(logits - logits.max(axis=-1, keepdims=True))
    raised /= raised.sum(axis=-1, keepdims=True)
    return raised


def named(scores: Array, labels: dict[int, str]) -> list[Entry]:
    return [{"label": labels[at], "score": float(scores[at])} for at in np.argsort(-scores).tolist()]


def ranked(scores: Sequence[float]) -> Body:
    """A reply of rerank: the documents' indices and scores, the best first."""
    order = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
    return {"results": [{"index": at, "score": scores[at]} for at in order]}
