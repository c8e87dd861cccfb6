"""OpenAI's routes: ``/v1/models`` and ``/v1/embeddings``."""

import time
from typing import Any, Literal

import msgspec
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from padserve.core import ModelSpec
from padserve.http.adapters.base import Adapter, AnyRequest, Desk
from padserve.http.adapters.fields import Dimensions, NativeOptions, TextsOrIds, embed_request, native
from padserve.http.adapters.openai_errors import OPENAI_ERRORS
from padserve.http.body import BodyDecoder
from padserve.http.operations import json_response
from padserve.service.service import Reply
from padserve.tasks.embed_ids import EmbedIds, EmbedIdsRequest


class OpenAIModel(msgspec.Struct, frozen=True, kw_only=True):
    """``created``: when the server started, in seconds of the epoch."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "padserve"


class OpenAIModels(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[OpenAIModel]


class OpenAIEmbeddingsRequest(NativeOptions, frozen=True, kw_only=True):
    """``input``: texts, or token ids of the model's own tokenizer. Fields that are not listed are ignored."""

    input: TextsOrIds
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Dimensions | None = None


class OpenAIEmbedding(msgspec.Struct, frozen=True, kw_only=True):
    """``embedding``: numbers, or the base64 of their little-endian float32 bytes."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class OpenAIUsage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class OpenAIEmbeddings(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[OpenAIEmbedding]
    model: str
    usage: OpenAIUsage


class OpenAI(Adapter):
    prefix, tag = "/v1", "openai"
    tasks = frozenset({"embed"})
    dialect = OPENAI_ERRORS

    def routes(self, desk: Desk) -> list[HTTPRouteHandler]:
        return [*_model_routes(self, desk), _embeddings_route(self, desk)]


def _model_routes(adapter: Adapter, desk: Desk) -> list[HTTPRouteHandler]:
    started = int(time.time())

    def described(spec: ModelSpec) -> OpenAIModel:
        return OpenAIModel(id=spec.name, created=started)

    @get("/v1/models", name="openai-models", opt=adapter.opt("The models served", None, OpenAIModels))
    async def list_models() -> Response[bytes]:
        return json_response(OpenAIModels(data=[described(spec) for spec in desk.service.specs()]))

    @get("/v1/models/{name:path}", name="openai-model", opt=adapter.opt("One model", None, OpenAIModel))
    async def read_model(name: FromPath[str]) -> Response[bytes]:
        return json_response(described(desk.spec(name.removeprefix("/"))))

    return [list_models, read_model]


def _embeddings_route(adapter: Adapter, desk: Desk) -> HTTPRouteHandler:
    decoder, of_texts, of_ids = BodyDecoder(OpenAIEmbeddingsRequest), desk.tasks["embed"], EmbedIds()
    opt = adapter.opt("Embeddings of texts or of token ids", OpenAIEmbeddingsRequest, OpenAIEmbeddings)

    @post("/v1/embeddings", name="openai-embeddings", status_code=200, opt=opt)
    async def embeddings(request: AnyRequest) -> Response[bytes]:
        given = await desk.read(request, decoder, of_texts.name)
        asked = embed_request(
            given.input,
            "input",
            model=given.model,
            dimensions=given.dimensions,
            encoding=given.encoding_format or "float",
            **native(given),
        )
        reply = await desk.run(request, of_ids if isinstance(asked, EmbedIdsRequest) else of_texts, asked)
        return desk.answer(reply, _embeddings(reply))

    return embeddings


def _embeddings(reply: Reply) -> OpenAIEmbeddings:
    results: list[Any] = reply.results
    tokens = reply.usage.input_tokens
    return OpenAIEmbeddings(
        data=[OpenAIEmbedding(index=place, embedding=result.embedding) for place, result in enumerate(results)],
        model=reply.model,
        usage=OpenAIUsage(prompt_tokens=tokens, total_tokens=tokens),
    )
