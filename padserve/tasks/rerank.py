"""/rerank: documents by relevance to a query, with a cross-encoder or by the cosine of an embedding model."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from padserve.core import ModelSpec, Output
from padserve.errors import PadserveError
from padserve.tasks.base import (
    Finished,
    ItemError,
    ItemProblem,
    Plan,
    Result,
    Task,
    TaskRequest,
    TaskResult,
    Unit,
    as_list,
    plan_each,
)
from padserve.tasks.scores import activate, cosine
from padserve.tasks.sentences import DOCUMENT_PROMPTS, QUERY_PROMPTS, role_prompt, sentence_encoding
from padserve.text.tokenizer import Tokenizer


class RerankRequest(TaskRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``documents``: one or several. ``top_k``: how many come back. ``activation``: ``auto`` is the model's own."""

    query: str
    documents: str | list[str]
    top_k: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    return_documents: bool = False
    activation: Literal["auto", "sigmoid", "none"] = "auto"


class RerankResult(TaskResult, frozen=True, kw_only=True, omit_defaults=True):
    """``index``: place in ``documents``."""

    index: int
    score: float
    document: str | None = None


class RerankFailure(Result, frozen=True, kw_only=True, omit_defaults=True):
    """A document that could not be run; these come last."""

    index: int
    error: ItemProblem
    document: str | None = None

    @property
    def input_tokens(self) -> int:
        return 0


class Rerank(Task[RerankRequest]):
    name = "rerank"
    summary = "Documents by relevance to a query"
    heads = frozenset({"sequence-classification", "embedding"})
    request_type = RerankRequest
    result_type = RerankResult

    @classmethod
    def supports(cls, spec: ModelSpec) -> str | None:
        if spec.head == "sequence-classification" and len(spec.labels) != 1:
            return f"/rerank needs a cross-encoder with one label; {spec.name!r} has {len(spec.labels)}"
        return super().supports(spec)

    def plan(self, request: RerankRequest, spec: ModelSpec, tokenizer: Tokenizer) -> Plan:
        documents = as_list(request.documents)
        if spec.head == "embedding":
            return _plan_cosine(documents, request, spec, tokenizer)

        def unit(document: str) -> Unit:
            tokens = tokenizer.fitted(
                request.query,
                document,
                max_length=spec.max_length,
                truncate=request.truncate,
                side=request.truncation_side,
                strategy="only_second",
            )
            return Unit((tokens.encoding(),))

        return plan_each(documents, unit)

    def finish(
        self,
        request: RerankRequest,
        spec: ModelSpec,
        plan: Plan,
        outputs: Sequence[Sequence[Output] | PadserveError],
    ) -> Finished:
        units = plan.units
        if spec.head == "embedding":
            query = outputs[0]
            if isinstance(query, PadserveError):
                raise query
            units, outputs = units[1:], outputs[1:]
            scores = [
                output if isinstance(output, PadserveError) else cosine(query[0], output[0]) for output in outputs
            ]
        else:
            activation = _activation(request, spec)
            scores = [
                output if isinstance(output, PadserveError) else float(activate(output[0], activation)[0])
                for output in outputs
            ]
        return _ranked(request, units, scores)


def _plan_cosine(documents: list[str], request: RerankRequest, spec: ModelSpec, tokenizer: Tokenizer) -> Plan:
    """The query's unit, then the documents'. A query that cannot run fails the request."""
    query = sentence_encoding(request.query, role_prompt(spec, QUERY_PROMPTS), request, spec, tokenizer)
    prompt = role_prompt(spec, DOCUMENT_PROMPTS)
    plan = plan_each(documents, lambda text: Unit((sentence_encoding(text, prompt, request, spec, tokenizer),)))
    return Plan([Unit((query,)), *plan.units])


def _activation(request: RerankRequest, spec: ModelSpec) -> Literal["sigmoid", "softmax", "none"]:
    """As `CrossEncoder`: the checkpoint's own wish, else sigmoid."""
    if request.activation != "auto":
        return request.activation
    return spec.rerank_activation or "sigmoid"


def _ranked(
    request: RerankRequest, units: Sequence[Unit | PadserveError], scores: Sequence[float | PadserveError]
) -> Finished:
    """Best first, failures last; when every document failed, their errors, for the request to fail with."""
    documents = as_list(request.documents)
    errors = [score for score in scores if isinstance(score, PadserveError)]
    if len(errors) == len(scores):
        return Finished(errors, many=True)
    results, failures = [], []
    for index, (unit, score) in enumerate(zip(units, scores, strict=True)):
        document = documents[index] if request.return_documents else None
        if isinstance(score, PadserveError):
            error = ItemError.of(score).error
            failures.append(RerankFailure(truncated=False, index=index, error=error, document=document))
        elif isinstance(unit, Unit):
            encoding = unit.encodings[0]
            results.append(
                RerankResult(
                    tokens=len(encoding), truncated=encoding.truncated, index=index, score=score, document=document
                )
            )
    results.sort(key=lambda result: -result.score)
    kept: list[Result | PadserveError] = [*results, *failures]
    return Finished(kept[: request.top_k], many=True)
