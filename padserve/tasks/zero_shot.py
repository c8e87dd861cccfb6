"""/zero-shot: labels made up by the client, by an NLI classifier or by the cosine of an embedding model."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np

from padserve.core import ModelSpec, Output
from padserve.errors import InvalidField, PadserveError
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
from padserve.tasks.scores import best_first, cosine, softmax
from padserve.tasks.sentences import named_prompt, sentence_encoding
from padserve.text.tokenizer import Tokenizer

Label = Annotated[str, msgspec.Meta(min_length=1)]


class ZeroShotRequest(TaskRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``hypothesis_template``: ``{}`` stands for the label. ``multi_label``: labels do not exclude each other."""

    inputs: str | list[str]
    labels: Annotated[list[Label], msgspec.Meta(min_length=1)]
    hypothesis_template: str = "This example is {}."
    multi_label: bool = False


class ZeroShotLabel(msgspec.Struct, frozen=True):
    label: str
    score: float


class ZeroShotResult(TaskResult, frozen=True, kw_only=True):
    """``labels``: best first. ``tokens``: summed over all that ran for the input."""

    labels: list[ZeroShotLabel]
    method: Literal["nli", "similarity"]


class ZeroShot(Task[ZeroShotRequest]):
    name = "zero-shot"
    summary = "Your own labels, by an NLI classifier or an embedding model"
    heads = frozenset({"sequence-classification", "embedding"})
    request_type = ZeroShotRequest
    result_type = ZeroShotResult

    @classmethod
    def supports(cls, spec: ModelSpec) -> str | None:
        if spec.head == "sequence-classification" and (len(spec.labels) < 2 or entailment_id(spec) is None):
            labels = ", ".join(spec.labels[:8])
            return f"/zero-shot needs a classifier with an entailment label; {spec.name!r} has {labels}"
        return super().supports(spec)

    def plan(self, request: ZeroShotRequest, spec: ModelSpec, tokenizer: Tokenizer) -> Plan:
        if "{}" not in request.hypothesis_template:
            raise InvalidField("hypothesis_template must contain {} where the label goes", field="hypothesis_template")
        hypotheses = [request.hypothesis_template.replace("{}", label) for label in request.labels]
        if spec.head == "embedding":
            prompt = named_prompt(spec, None)
            return plan_each(
                as_list(request.inputs),
                lambda text: Unit(
                    tuple(sentence_encoding(one, prompt, request, spec, tokenizer) for one in (text, *hypotheses))
                ),
            )

        def unit(text: str) -> Unit:
            pairs = (
                tokenizer.fitted(
                    text,
                    hypothesis,
                    max_length=spec.max_length,
                    truncate=request.truncate,
                    side=request.truncation_side,
                    strategy="only_first",
                )
                for hypothesis in hypotheses
            )
            return Unit(tuple(tokens.encoding() for tokens in pairs))

        return plan_each(as_list(request.inputs), unit)

    def finish(
        self,
        request: ZeroShotRequest,
        spec: ModelSpec,
        plan: Plan,
        outputs: Sequence[Sequence[Output] | PadserveError],
    ) -> Finished:
        by_cosine = spec.head == "embedding"

        def result(unit: Unit, output: Sequence[Output]) -> ZeroShotResult:
            scores = (
                [cosine(output[0], label) for label in output[1:]]
                if by_cosine
                else entailment_scores(np.stack(output), spec, request.multi_label)
            )
            return ZeroShotResult(
                tokens=sum(len(encoding) for encoding in unit.encodings),
                truncated=any(encoding.truncated for encoding in unit.encodings),
                labels=[ZeroShotLabel(request.labels[index], scores[index]) for index in best_first(scores)],
                method="similarity" if by_cosine else "nli",
            )

        return finish_each(plan, outputs, isinstance(request.inputs, list), result)


def entailment_id(spec: ModelSpec) -> int | None:
    return next((i for i, label in enumerate(spec.labels) if label.lower().startswith("entail")), None)


def entailment_scores(logits: Output, spec: ModelSpec, multi_label: bool) -> list[float]:
    """Scores from ``[num_labels, num_classes]`` logits, as transformers' zero-shot pipeline.

    One label, or ``multi_label``: entailment against contradiction, for each label by itself. Else a softmax of the
    entailment logits over the labels.
    """
    entailment = entailment_id(spec)
    if entailment is None:
        raise ValueError(f"model {spec.name!r} has no entailment label")
    if multi_label or len(logits) == 1:
        contradiction = -1 if entailment == 0 else 0
        scores = softmax(logits[:, [contradiction, entailment]])[:, 1]
    else:
        scores = softmax(logits[:, entailment])
    listed: list[float] = scores.tolist()
    return listed
