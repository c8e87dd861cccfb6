"""What OpenAI's completions and chat completions share: fields of sampling, usage, and how a stream is told."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from padserve.errors import InvalidField
from padserve.http.adapters.fields import NativeOptions
from padserve.http.adapters.openai_errors import OPENAI_ERRORS
from padserve.http.sse import Event, data_line
from padserve.service.service import Reply
from padserve.tasks.generating import EndEvent, Penalty, Positive, Probability, Text, TokenEvent

DONE = b"data: [DONE]\n\n"
LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON does not have."""
FinishReason = Literal["stop", "length"]
TokenCount = Annotated[int, msgspec.Meta(ge=0, le=100_000)]
Logprobs = Annotated[int, msgspec.Meta(ge=0, le=20)]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    include_usage: bool | None = None


class SamplingFields(NativeOptions, frozen=True, kw_only=True):
    """``temperature`` is the checkpoint's, else 1, unless given; 0 is greedy. From ``top_k`` on they are vLLM's."""

    model: str | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=64)] | None = None
    stop: list[Text] | Text | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=1000)] | None = None
    top_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, float] | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    repetition_penalty: Positive | None = None
    min_tokens: TokenCount | None = None
    stop_token_ids: list[Annotated[int, msgspec.Meta(ge=0)]] | None = None
    ignore_eos: bool | None = None


def generation_options(given: SamplingFields) -> dict[str, Any]:
    """The same for a request of /generate. Errors: `InvalidField`."""
    if given.stream_options is not None and not given.stream:
        raise InvalidField("stream_options are for streams: set stream", field="stream_options")
    return {
        "truncate": given.truncate,
        "truncation_side": given.truncation_side,
        "priority": given.priority,
        "timeout_ms": given.timeout_ms,
        "stop": given.stop,
        "do_sample": True,
        "temperature": given.temperature,
        "top_p": given.top_p,
        "top_k": None if given.top_k is None else max(given.top_k, 0),
        "min_p": given.min_p,
        "num_return_sequences": given.n or 1,
        "presence_penalty": given.presence_penalty or 0.0,
        "frequency_penalty": given.frequency_penalty or 0.0,
        "repetition_penalty": given.repetition_penalty,
        "logit_bias": given.logit_bias,
        "seed": given.seed,
        "min_new_tokens": given.min_tokens,
        "stop_token_ids": given.stop_token_ids,
        "ignore_eos": bool(given.ignore_eos),
        "stream": bool(given.stream),
    }


class GenerationUsage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, reply: Reply) -> "GenerationUsage":
        prompt, completion = reply.usage.input_tokens, reply.usage.output_tokens or 0
        return cls(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)


StreamedUsage = GenerationUsage | None | msgspec.UnsetType


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What every object that answers a request begins with."""

    id: str
    created: int
    model: str


def head(prefix: str, request_id: str, model: str) -> dict[str, Any]:
    return {"id": f"{prefix}-{request_id}", "created": int(time.time()), "model": model}


def finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)


class Chunks(ABC):
    """The wording of a stream: a chunk for each event, one of the usage if asked for, then ``[DONE]``.

    ``head``: of every chunk. ``n``: outputs of a prompt.
    """

    chunk_type: ClassVar[type[msgspec.Struct]]

    def __init__(self, head: dict[str, Any], given: SamplingFields) -> None:
        self._head, self._n = head, given.n or 1
        self._with_usage = bool(given.stream_options and given.stream_options.include_usage)
        self._usage: StreamedUsage = None if self._with_usage else msgspec.UNSET

    @abstractmethod
    def of_token(self, index: int, event: TokenEvent) -> Iterable[msgspec.Struct]:
        """What it adds to choice ``index``, as choices of chunks."""

    @abstractmethod
    def of_end(self, index: int, event: EndEvent) -> Iterable[msgspec.Struct]: ...

    def event(self, event: Event) -> bytes:
        if isinstance(event, Reply):
            return (self._chunk([], GenerationUsage.of(event)) if self._with_usage else b"") + DONE
        index = event.input * self._n + event.index
        choices = self.of_token(index, event) if isinstance(event, TokenEvent) else self.of_end(index, event)
        return b"".join(self._chunk([choice], self._usage) for choice in choices)

    def _chunk(self, choices: list[msgspec.Struct], usage: StreamedUsage) -> bytes:
        return data_line(self.chunk_type(**self._head, choices=choices, usage=usage))

    def error(self, problem: dict[str, Any]) -> bytes:
        return data_line(OPENAI_ERRORS.write(problem)[1])
