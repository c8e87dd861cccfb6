"""From token scores to entities, by the rules of transformers' token-classification pipeline.

Beside the pipeline's: offsets leave outer spaces out, and each token of a long text has been given its scores already.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from padserve.tasks.scores import Scores
from padserve.text.tokenizer import Tokenizer, Tokens

Aggregation = Literal["none", "simple", "first", "average", "max"]
OUTSIDE = "O"


@dataclass(frozen=True, slots=True)
class Span:
    """A token, a word or an entity with its label; characters ``start`` to ``end`` of the text."""

    label: str
    score: float
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TokenScores:
    """One content token: its softmax scores ``[num_labels]``, and whether it goes on with the word before it."""

    scores: Scores
    start: int
    end: int
    continues: bool


def entities(tokens: Sequence[TokenScores], labels: Sequence[str], aggregation: Aggregation) -> list[Span]:
    """Labelled spans, those outside of any entity left out."""
    if aggregation in ("none", "simple"):
        spans = [_labelled([token], labels, "first") for token in tokens]
    else:
        spans = [_labelled(word, labels, aggregation) for word in words(tokens)]
    if aggregation != "none":
        spans = merged(spans)
    return [span for span in spans if span.label != OUTSIDE]


def words(tokens: Sequence[TokenScores]) -> list[list[TokenScores]]:
    grouped: list[list[TokenScores]] = []
    for token in tokens:
        if grouped and token.continues:
            grouped[-1].append(token)
        else:
            grouped.append([token])
    return grouped


def _labelled(word: Sequence[TokenScores], labels: Sequence[str], aggregation: Aggregation) -> Span:
    """The word's label by its first token, its surest token, or its mean scores."""
    if aggregation == "average":
        scores = np.mean([token.scores for token in word], axis=0)
    elif aggregation == "max":
        scores = max(word, key=lambda token: float(token.scores.max())).scores
    else:
        scores = word[0].scores
    best = int(scores.argmax())
    return Span(labels[best], float(scores[best]), word[0].start, word[-1].end)


def merged(spans: Sequence[Span]) -> list[Span]:
    """Neighbours of one entity as one span, its score their mean; ``B-`` starts a new one."""
    groups: list[list[Span]] = []
    for span in spans:
        begins, tag = tag_of(span.label)
        if groups and not begins and tag_of(groups[-1][-1].label)[1] == tag:
            groups[-1].append(span)
        else:
            groups.append([span])
    return [
        Span(
            group[0].label.split("-", 1)[-1],
            float(np.mean([span.score for span in group])),
            group[0].start,
            group[-1].end,
        )
        for group in groups
    ]


def tag_of(label: str) -> tuple[bool, str]:
    """Whether a label begins an entity, and its tag. A label that is neither ``B-`` nor ``I-`` continues."""
    if label.startswith(("B-", "I-")):
        return label.startswith("B-"), label[2:]
    return False, label


def continues_word(text: str, tokens: Tokens, index: int, tokenizer: Tokenizer) -> bool:
    """Whether a token goes on with the word before it, as the pipeline decides.

    With a tokenizer that marks such tokens ("##"): when it is longer than its text. With another one: when no space is
    beside its start.
    """
    if tokens.offsets is None or int(tokens.input_ids[index]) == tokenizer.unk_token_id:
        return False
    start, end = tokens.offsets[index]
    if tokenizer.word_piece_prefix():
        return len(tokenizer.id_to_token(int(tokens.input_ids[index]))) != end - start
    return start > 0 and " " not in text[start - 1 : start + 1]


def trimmed(text: str, span: Span) -> tuple[int, int]:
    """Start and end of a span without its outer spaces."""
    piece = text[span.start : span.end]
    start = span.start + len(piece) - len(piece.lstrip())
    return start, max(start, span.start + len(piece.rstrip()))
