"""OpenAI's ``/v1/chat/completions``, by the checkpoint's own chat template."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec
from litestar import Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream

from padserve.core import ModelSpec
from padserve.errors import InvalidField
from padserve.http.adapters.base import Adapter, AnyRequest, Desk
from padserve.http.adapters.chat_messages import ChatMessage, template_messages
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
from padserve.tasks.converse import Converse, ConverseRequest
from padserve.tasks.generating import Count, EndEvent, LogprobOf, TokenEvent, TokenLogprobs

DEFAULT_TOKENS = 4096
"""Where neither the request nor the checkpoint says how many, and the model's window has as many left."""


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True):
    type: str


class ChatRequest(SamplingFields, frozen=True, kw_only=True):
    """``add_generation_prompt`` is true unless the last message is continued. ``chat_template_kwargs``: the template's
    variables. Fields that are not listed are ignored.
    """

    messages: list[ChatMessage]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    response_format: ResponseFormat | None = None
    modalities: list[str] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None


class ChatLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """``bytes``: the token's text in UTF-8; None where it is no whole characters."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokenLogprob(ChatLogprob, frozen=True, kw_only=True):
    top_logprobs: list[ChatLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Of every generated token."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class ChatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: ChatAnswer
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason


class ChatCompletion(Head, frozen=True, kw_only=True):
    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    usage: GenerationUsage


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None


class ChatChunk(Head, frozen=True, kw_only=True):
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatChunkChoice]
    usage: StreamedUsage = msgspec.UNSET


class Chat(Adapter):
    prefix, tag = "/v1", "openai"
    tasks = frozenset({"generate"})
    dialect = OPENAI_ERRORS

    def routes(self, desk: Desk) -> list[HTTPRouteHandler]:
        decoder, task = BodyDecoder(ChatRequest), Converse()
        opt = self.opt("The next message of a conversation", ChatRequest, ChatCompletion)

        @post("/v1/chat/completions", name="openai-chat", status_code=200, opt=opt)
        async def chat(request: AnyRequest) -> Response[bytes] | Stream:
            given = await desk.read(request, decoder, task.name)
            spec = desk.select(given.model, task.name)
            asked, top = _asked(given, spec), head("chatcmpl", exchange_of(request.scope).request_id, spec.name)
            if given.stream:
                return await desk.stream(request, task, asked, ChatChunks(top, given))
            reply = await desk.run(request, task, asked)
            usage = GenerationUsage.of(reply)
            return desk.answer(reply, ChatCompletion(**top, choices=list(_choices(reply)), usage=usage))

        return [chat]


def _asked(given: ChatRequest, spec: ModelSpec) -> ConverseRequest:
    """Errors: `InvalidField`."""
    _refuse_unsupported(given)
    if given.add_generation_prompt and given.continue_final_message:
        raise InvalidField(
            "a final message that is continued leaves no place for a generation prompt", field="add_generation_prompt"
        )
    continued = bool(given.continue_final_message)
    prompted = not continued if given.add_generation_prompt is None else given.add_generation_prompt
    defaults = spec.generation.defaults if spec.generation else {}
    wanted = given.max_completion_tokens or given.max_tokens or defaults.get("max_new_tokens") or DEFAULT_TOKENS
    return ConverseRequest(
        model=spec.name,
        messages=template_messages(given.messages),
        add_generation_prompt=prompted,
        continue_final_message=continued,
        variables=given.chat_template_kwargs or {},
        max_new_tokens=wanted,
        logprobs=(given.top_logprobs or 0) if given.logprobs else None,
        **generation_options(given),
    )


def _refuse_unsupported(given: ChatRequest) -> None:
    """Fields that are taken only where they ask for nothing. Errors: `InvalidField`."""
    for field, asks, why in (
        ("response_format", given.response_format and given.response_format.type != "text", "only text is given"),
        ("modalities", given.modalities and given.modalities != ["text"], "only text is given"),
        ("tools", given.tools, "no tools are called here"),
        ("tool_choice", given.tool_choice not in (None, "none"), "no tools are called here"),
        ("functions", given.functions, "no functions are called here"),
        ("function_call", given.function_call not in (None, "none"), "no functions are called here"),
        ("top_logprobs", given.top_logprobs and not given.logprobs, "set logprobs too"),
    ):
        if asks:
            raise InvalidField(f"{field}: {why}", field=field)


def _choices(reply: Reply) -> Iterator[ChatChoice]:
    results: list[Any] = reply.results
    for index, output in enumerate(results[0].outputs):
        logprobs = None if output.logprobs is None else chat_logprobs(output.logprobs)
        message = ChatAnswer(content=output.text)
        yield ChatChoice(index=index, message=message, logprobs=logprobs, finish_reason=output.finish_reason)


def chat_logprobs(tokens: Sequence[TokenLogprobs]) -> ChatLogprobs:
    content = [
        ChatTokenLogprob(**_told(one), top_logprobs=[ChatLogprob(**_told(top)) for top in one.top]) for one in tokens
    ]
    return ChatLogprobs(content=content)


def _told(one: LogprobOf | TokenLogprobs) -> dict[str, Any]:
    whole = one.token and "\ufffd" not in one.token
    return {
        "token": one.token,
        "logprob": finite(one.logprob),
        "bytes": list(one.token.encode()) if whole else None,
    }


class ChatChunks(Chunks):
    """The first chunk of a choice tells the role."""

    chunk_type = ChatChunk

    def __init__(self, head: dict[str, Any], given: ChatRequest) -> None:
        super().__init__(head, given)
        self._begun: set[int] = set()

    def of_token(self, index: int, event: TokenEvent) -> Iterable[ChatChunkChoice]:
        yield from self._begin(index)
        if event.text or event.logprob is not None:
            logprobs = None if event.logprob is None else chat_logprobs([event.logprob])
            yield ChatChunkChoice(index=index, delta=ChatDelta(content=event.text), logprobs=logprobs)

    def of_end(self, index: int, event: EndEvent) -> Iterable[ChatChunkChoice]:
        yield from self._begin(index)
        yield ChatChunkChoice(index=index, delta=ChatDelta(), finish_reason=event.finish_reason)

    def _begin(self, index: int) -> Iterable[ChatChunkChoice]:
        if index not in self._begun:
            self._begun.add(index)
            yield ChatChunkChoice(index=index, delta=ChatDelta(role="assistant", content=""))
