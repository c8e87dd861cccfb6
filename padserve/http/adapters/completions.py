"""OpenAI's ``/v1/completions``."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec
from litestar import Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream

from padserve.errors import InvalidField
from padserve.http.adapters.base import Adapter, AnyRequest, Desk
from padserve.http.adapters.fields import TextsOrIds, texts_or_ids
from padserve.http.adapters.openai_errors import OPENAI_ERRORS
from padserve.http.adapters.openai_generation import (
    Chunks,
    FinishReason,
    GenerationUsage,
    Head,
    Logprobs,
    SamplingFields,
    StreamedUsage,
    finite,
    generation_options,
    head,
)
from padserve.http.body import BodyDecoder
from padserve.http.exchange import exchange_of
from padserve.service.service import Reply
from padserve.tasks.complete import Complete, CompleteRequest
from padserve.tasks.generating import Count, EndEvent, LogprobOf, TokenEvent, TokenLogprobs

DEFAULT_TOKENS = 16


class CompletionsRequest(SamplingFields, frozen=True, kw_only=True):
    """``prompt``: texts, or token ids of the model's own tokenizer. Fields that are not listed are ignored."""

    prompt: TextsOrIds
    max_tokens: Count | None = None
    logprobs: Logprobs | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None
    add_special_tokens: bool = True


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Of every generated token. ``text_offset``: where each begins in the text."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """``index``: prompt * n + output. ``finish_reason``: None in a stream, but for the last chunk of a choice."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None


class Completion(Head, frozen=True, kw_only=True):
    """A reply, and a chunk of a stream."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]
    usage: StreamedUsage = msgspec.UNSET


class Completions(Adapter):
    prefix, tag = "/v1", "openai"
    tasks = frozenset({"generate"})
    dialect = OPENAI_ERRORS

    def routes(self, desk: Desk) -> list[HTTPRouteHandler]:
        decoder, task = BodyDecoder(CompletionsRequest), Complete()
        opt = self.opt("Text that goes on from prompts", CompletionsRequest, Completion)

        @post("/v1/completions", name="openai-completions", status_code=200, opt=opt)
        async def completions(request: AnyRequest) -> Response[bytes] | Stream:
            given = await desk.read(request, decoder, task.name)
            model = desk.select(given.model, task.name).name
            asked, top = _asked(given, model), head("cmpl", exchange_of(request.scope).request_id, model)
            if given.stream:
                return await desk.stream(request, task, asked, CompletionChunks(top, given))
            reply = await desk.run(request, task, asked)
            usage = GenerationUsage.of(reply)
            return desk.answer(reply, Completion(**top, choices=list(_choices(reply)), usage=usage))

        return [completions]


def _asked(given: CompletionsRequest, model: str) -> CompleteRequest:
    """Errors: `InvalidField`."""
    if given.suffix:
        raise InvalidField("suffix: nothing is inserted before a text here; leave it out", field="suffix")
    if given.best_of is not None and given.best_of != (given.n or 1):
        raise InvalidField("best_of: all n outputs are given, none is chosen; leave it out", field="best_of")
    if given.echo and given.logprobs is not None:
        raise InvalidField("echo: there are no log probabilities of a prompt's tokens in this version", field="echo")
    kind, prompts = texts_or_ids(given.prompt, "prompt")
    return CompleteRequest(
        model=model,
        max_new_tokens=given.max_tokens or DEFAULT_TOKENS,
        logprobs=given.logprobs,
        echo=bool(given.echo),
        add_special_tokens=given.add_special_tokens,
        **{kind: prompts},
        **generation_options(given),
    )


def _choices(reply: Reply) -> Iterator[CompletionChoice]:
    results: list[Any] = reply.results
    for index, output in enumerate(output for result in results for output in result.outputs):
        logprobs = None if output.logprobs is None else completion_logprobs(output.logprobs, 0)
        yield CompletionChoice(index=index, text=output.text, logprobs=logprobs, finish_reason=output.finish_reason)


def completion_logprobs(tokens: Sequence[TokenLogprobs], offset: int) -> CompletionLogprobs:
    """``offset``: where the first token begins in the text."""
    offsets = []
    for one in tokens:
        offsets.append(offset)
        offset += len(one.token)
    return CompletionLogprobs(
        tokens=[one.token for one in tokens],
        token_logprobs=[finite(one.logprob) for one in tokens],
        top_logprobs=[_top(one) for one in tokens],
        text_offset=offsets,
    )


def _top(token: TokenLogprobs) -> dict[str, float]:
    """The likeliest by their texts, and the token itself. Of tokens with one text the likeliest counts."""
    found: dict[str, float] = {}
    likely: Sequence[LogprobOf | TokenLogprobs] = (*token.top, token)
    for one in likely:
        found.setdefault(one.token, finite(one.logprob))
    return found


class CompletionChunks(Chunks):
    chunk_type = Completion

    def __init__(self, head: dict[str, Any], given: CompletionsRequest) -> None:
        super().__init__(head, given)
        self._offsets: dict[int, int] = {}

    def of_token(self, index: int, event: TokenEvent) -> Iterable[CompletionChoice]:
        if not event.text and event.logprob is None:
            return
        logprobs = None
        if event.logprob is not None:
            logprobs = completion_logprobs([event.logprob], self._offsets.get(index, 0))
            self._offsets[index] = logprobs.text_offset[0] + len(event.logprob.token)
        yield CompletionChoice(index=index, text=event.text, logprobs=logprobs)

    def of_end(self, index: int, event: EndEvent) -> Iterable[CompletionChoice]:
        yield CompletionChoice(index=index, text="", finish_reason=event.finish_reason)
