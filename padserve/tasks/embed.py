"""/embed: sentence embeddings."""

import base64
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt

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
from padserve.tasks.scores import unit_vector
from padserve.tasks.sentences import embedding_of, named_prompt, sentence_encoding
from padserve.text.tokenizer import Tokenizer

Pooling = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]


class EmbedRequest(TaskRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``dimensions``: keep the first ones. ``prompt``: put before the text; ``prompt_name``: one of the model's."""

    inputs: str | list[str]
    normalize: bool = True
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    pooling: Pooling | None = None
    prompt: str | None = None
    prompt_name: str | None = None
    encoding: Literal["float", "base64"] = "float"
    precision: Literal["float32", "int8", "binary"] = "float32"


class EmbedResult(TaskResult, frozen=True, kw_only=True):
    """``embedding``: numbers, or the base64 of their little-endian bytes."""

    embedding: list[float] | str


class Embed(Task[EmbedRequest]):
    name = "embed"
    summary = "Sentence embeddings"
    heads = frozenset({"embedding"})
    request_type = EmbedRequest
    result_type = EmbedResult

    def plan(self, request: EmbedRequest, spec: ModelSpec, tokenizer: Tokenizer) -> Plan:
        check_options(request, spec)
        prompt = named_prompt(spec, request.prompt_name) if request.prompt is None else request.prompt

        def unit(text: str) -> Unit:
            return Unit((sentence_encoding(text, prompt, request, spec, tokenizer, request.pooling),))

        return plan_each(as_list(request.inputs), unit)

    def finish(
        self,
        request: EmbedRequest,
        spec: ModelSpec,
        plan: Plan,
        outputs: Sequence[Sequence[Output] | PadserveError],
    ) -> Finished:
        def result(unit: Unit, output: Sequence[Output]) -> EmbedResult:
            encoding, vector = unit.encodings[0], shaped(output[0], request)
            embedding = written(vector, request.encoding)
            return EmbedResult(tokens=len(encoding), truncated=encoding.truncated, embedding=embedding)

        return finish_each(plan, outputs, isinstance(request.inputs, list), result)


def check_options(request: EmbedRequest, spec: ModelSpec) -> None:
    """Errors: `InvalidField` for what this model cannot give."""
    width, own = embedding_of(spec).dimensions, embedding_of(spec).pooling
    if request.dimensions is not None and request.dimensions > width:
        raise InvalidField(f"dimensions is {request.dimensions}, the model has {width}", field="dimensions")
    if request.pooling is not None and "+" in own:
        raise InvalidField(f"model {spec.name!r} joins poolings ({own}); leave pooling out", field="pooling")


def shaped(vector: Output, request: EmbedRequest) -> npt.NDArray[np.float32] | npt.NDArray[np.int8]:
    """Cut, normalized and quantized as the request asks."""
    if request.dimensions is not None:
        vector = vector[: request.dimensions]
    if request.precision == "binary":
        return (np.packbits(vector > 0).astype(np.int16) - 128).astype(np.int8)
    if request.precision == "int8":
        return np.rint(127 * unit_vector(vector)).astype(np.int8)
    return unit_vector(vector) if request.normalize else vector


def written(vector: npt.NDArray[np.float32] | npt.NDArray[np.int8], encoding: str) -> list[float] | str:
    if encoding == "base64":
        return base64.b64encode(vector.astype(vector.dtype.newbyteorder("<")).tobytes()).decode("ascii")
    numbers: list[float] = vector.tolist()
    return numbers
