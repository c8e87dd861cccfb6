"""/classify: labels of a text or of a pair of texts."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from padserve.core import Activation, ModelSpec, Output
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
from padserve.tasks.scores import activate, best_first
from padserve.text.tokenizer import Tokenizer


class TextPair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str
    text_pair: str | None = None


class ClassifyRequest(TaskRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``top_k``: how many labels, all when absent. ``activation``: ``auto`` follows the checkpoint."""

    inputs: str | TextPair | list[str | TextPair]
    top_k: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None
    activation: Literal["auto", "softmax", "sigmoid", "none"] = "auto"


class LabelScore(msgspec.Struct, frozen=True):
    label: str
    score: float


class ClassifyResult(TaskResult, frozen=True, kw_only=True):
    """``labels``: best first."""

    labels: list[LabelScore]


class Classify(Task[ClassifyRequest]):
    name = "classify"
    summary = "Labels of a text or of a pair of texts"
    heads = frozenset({"sequence-classification"})
    request_type = ClassifyRequest
    result_type = ClassifyResult

    def plan(self, request: ClassifyRequest, spec: ModelSpec, tokenizer: Tokenizer) -> Plan:
        def unit(given: str | TextPair) -> Unit:
            pair = given if isinstance(given, TextPair) else TextPair(given)
            tokens = tokenizer.fitted(
                pair.text,
                pair.text_pair,
                max_length=spec.max_length,
                truncate=request.truncate,
                side=request.truncation_side,
            )
            return Unit((tokens.encoding(),))

        inputs: list[str | TextPair] = as_list(request.inputs)
        return plan_each(inputs, unit)

    def finish(
        self,
        request: ClassifyRequest,
        spec: ModelSpec,
        plan: Plan,
        outputs: Sequence[Sequence[Output] | PadserveError],
    ) -> Finished:
        activation = own_activation(spec) if request.activation == "auto" else request.activation

        def result(unit: Unit, output: Sequence[Output]) -> ClassifyResult:
            encoding, scores = unit.encodings[0], activate(output[0], activation)
            labels = [LabelScore(spec.labels[index], float(scores[index])) for index in best_first(scores)]
            return ClassifyResult(
                tokens=len(encoding), truncated=encoding.truncated, labels=labels[: request.top_k or len(labels)]
            )

        return finish_each(plan, outputs, isinstance(request.inputs, list), result)


def own_activation(spec: ModelSpec) -> Activation:
    """What transformers' text-classification pipeline applies to this checkpoint."""
    if spec.problem_type == "regression":
        return "none"
    if spec.problem_type == "multi_label_classification" or len(spec.labels) == 1:
        return "sigmoid"
    if spec.problem_type == "single_label_classification" or spec.function_to_apply is None:
        return "softmax"
    return spec.function_to_apply
