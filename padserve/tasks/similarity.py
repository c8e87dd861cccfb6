"""/similarity: the cosine of one text with others."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from padserve.core import ModelSpec, Output
from padserve.errors import PadserveError
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
from padserve.tasks.scores import cosine
from padserve.tasks.sentences import named_prompt, sentence_encoding
from padserve.text.tokenizer import Tokenizer


class SourceSentences(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: str
    sentences: Annotated[list[str], msgspec.Meta(min_length=1)]


class SimilarityRequest(TaskRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    inputs: SourceSentences | list[SourceSentences]


class SimilarityResult(TaskResult, frozen=True, kw_only=True):
    """``scores``: one a sentence, in order. ``tokens`` is their sum, ``truncated`` if any was cut."""

    scores: list[float]


class Similarity(Task[SimilarityRequest]):
    name = "similarity"
    summary = "The cosine of one text with others"
    heads = frozenset({"embedding"})
    request_type = SimilarityRequest
    result_type = SimilarityResult

    def plan(self, request: SimilarityRequest, spec: ModelSpec, tokenizer: Tokenizer) -> Plan:
        prompt = named_prompt(spec, None)

        def unit(given: SourceSentences) -> Unit:
            texts = (given.source, *given.sentences)
            return Unit(tuple(sentence_encoding(text, prompt, request, spec, tokenizer) for text in texts))

        return plan_each(as_list(request.inputs), unit)

    def finish(
        self,
        request: SimilarityRequest,
        spec: ModelSpec,
        plan: Plan,
        outputs: Sequence[Sequence[Output] | PadserveError],
    ) -> Finished:
        def result(unit: Unit, output: Sequence[Output]) -> SimilarityResult:
            return SimilarityResult(
                tokens=sum(len(encoding) for encoding in unit.encodings),
                truncated=any(encoding.truncated for encoding in unit.encodings),
                scores=[cosine(output[0], other) for other in output[1:]],
            )

        return finish_each(plan, outputs, isinstance(request.inputs, list), result)
