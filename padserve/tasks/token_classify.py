"""/token-classify: entities with character offsets; texts longer than the model by overlapping windows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
import numpy as np

from padserve.core import Encoding, ModelSpec, Output
from padserve.errors import InvalidField, PadserveError
from padserve.tasks.aggregate import Aggregation, TokenScores, continues_word, entities, trimmed
from padserve.tasks.base import (
    Finished,
    Plan,
    Task,
    TaskRequest,
    TaskResult,
    Unit,
    as_list,
    finish_each,
    plan_each,
)
from padserve.tasks.scores import softmax
from padserve.text.tokenizer import Tokenizer, Tokens, windows


class TokenClassifyRequest(TaskRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``stride``: tokens by which the windows over a long text overlap; without it a long text is an error."""

    inputs: str | list[str]
    aggregation: Aggregation = "first"
    stride: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None


class Entity(msgspec.Struct, frozen=True):
    """``text`` is the slice ``start`` to ``end`` of the input, in characters, without outer spaces."""

    label: str
    score: float
    text: str
    start: int
    end: int


class TokenClassifyResult(TaskResult, frozen=True, kw_only=True):
    entities: list[Entity]


@dataclass(frozen=True, slots=True)
class LongText:
    """A text and the positions of its tokens that each window holds."""

    text: str
    tokens: Tokens
    spans: list[list[int]]
    tokenizer: Tokenizer


class TokenClassify(Task[TokenClassifyRequest]):
    name = "token-classify"
    summary = "Entities with character offsets"
    heads = frozenset({"token-classification"})
    request_type = TokenClassifyRequest
    result_type = TokenClassifyResult

    def plan(self, request: TokenClassifyRequest, spec: ModelSpec, tokenizer: Tokenizer) -> Plan:
        def unit(text: str) -> Unit:
            if request.stride is None:
                tokens = tokenizer.fitted(
                    text, max_length=spec.max_length, truncate=request.truncate, side=request.truncation_side
                )
                spans = [list(range(len(tokens)))]
            else:
                tokens = tokenizer.tokens(text)
                spans = _windows(tokens, spec.max_length, request.stride)
            if tokens.offsets is None:
                raise InvalidField(f"the tokenizer of {spec.name!r} gives no offsets, so entities cannot be placed")
            return Unit(tuple(_window(tokens, span) for span in spans), LongText(text, tokens, spans, tokenizer))

        return plan_each(as_list(request.inputs), unit)

    def finish(
        self,
        request: TokenClassifyRequest,
        spec: ModelSpec,
        plan: Plan,
        outputs: Sequence[Sequence[Output] | PadserveError],
    ) -> Finished:
        def result(unit: Unit, output: Sequence[Output]) -> TokenClassifyResult:
            long: LongText = unit.state
            found = entities(scored(long, output), spec.labels, request.aggregation)
            placed = [(span, *trimmed(long.text, span)) for span in found]
            return TokenClassifyResult(
                tokens=sum(len(encoding) for encoding in unit.encodings),
                truncated=long.tokens.truncated,
                entities=[Entity(span.label, span.score, long.text[a:b], a, b) for span, a, b in placed],
            )

        return finish_each(plan, outputs, isinstance(request.inputs, list), result)


def _windows(tokens: Tokens, max_length: int, stride: int) -> list[list[int]]:
    """Errors: `InvalidField` for a stride with which windows would not move on."""
    room = max_length - tokens.num_special
    if stride >= room:
        raise InvalidField(
            f"stride is {stride}, it must be below {room}, the tokens that a window holds", field="stride"
        )
    if len(tokens) <= max_length:
        return [list(range(len(tokens)))]
    return windows(tokens, max_length, stride)


def _window(tokens: Tokens, span: list[int]) -> Encoding:
    encoding = (tokens if len(span) == len(tokens) else tokens.select(span)).encoding()
    return replace(encoding, truncated=tokens.truncated)


def scored(long: LongText, outputs: Sequence[Output]) -> list[TokenScores]:
    """Scores of every content token, from the window in which it stands farthest from an edge."""
    tokens = long.tokens
    logits: dict[int, Output] = {}
    depth = np.full(len(tokens), -1)
    for span, output in zip(long.spans, outputs, strict=True):
        for place, index in enumerate(span):
            inside = min(place, len(span) - 1 - place)
            if inside > depth[index]:
                depth[index], logits[index] = inside, output[place]
    content = [index for index, part in enumerate(tokens.parts) if part is not None and index in logits]
    if not content or tokens.offsets is None:
        return []
    scores = softmax(np.stack([logits[index] for index in content]))
    return [
        TokenScores(row, *tokens.offsets[index], continues_word(long.text, tokens, index, long.tokenizer))
        for row, index in zip(scores, content, strict=True)
    ]
