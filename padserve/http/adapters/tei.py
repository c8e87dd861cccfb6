"""Routes of text-embeddings-inference, under ``/tei``."""

import asyncio
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler

from padserve import __version__
from padserve.core import ModelSpec
from padserve.errors import EmptyInputs, InvalidField, Unavailable, WrongTask
from padserve.http.adapters.base import Adapter, AnyRequest, Desk
from padserve.http.adapters.dialect import Dialect, Problem
from padserve.http.adapters.fields import Dimensions, TextsOrIds, embed_request
from padserve.http.body import BodyDecoder
from padserve.http.operations import RETRY_AFTER_S, json_response
from padserve.tasks.classify import ClassifyRequest, TextPair
from padserve.tasks.embed_ids import EmbedIds, EmbedIdsRequest
from padserve.tasks.rerank import RerankRequest
from padserve.tasks.sentences import named_prompt
from padserve.tasks.similarity import SimilarityRequest, SourceSentences
from padserve.tasks.tokenize import TokenizeRequest
from padserve.tasks.tokenize_marked import MarkedTokensResult, TokenizeMarked

Direction = Literal["left", "Left", "right", "Right"]
MAIN_TASKS = ("embed", "rerank", "classify")
"""What a server of TEI's one model may be for, the likeliest first."""


class TeiOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``model``: TEI serves one, so it has no such field. ``truncate``: false when absent."""

    model: str | None = None
    truncate: bool | None = None
    truncation_direction: Direction = "right"


class TeiEmbedRequest(TeiOptions, frozen=True, kw_only=True):
    inputs: TextsOrIds
    normalize: bool = True
    prompt_name: str | None = None
    dimensions: Dimensions | None = None


class TeiPredictRequest(TeiOptions, frozen=True, kw_only=True):
    """``inputs``: a text; a pair ``["a", "b"]``; or several of either, ``[["a"], ["b", "c"]]``."""

    inputs: str | list[str | Annotated[list[str], msgspec.Meta(min_length=1, max_length=2)]]
    raw_scores: bool = False


class TeiPrediction(msgspec.Struct, frozen=True):
    score: float
    label: str


class TeiRerankRequest(TeiOptions, frozen=True, kw_only=True):
    query: str
    texts: list[str]
    raw_scores: bool = False
    return_text: bool = False


class TeiRank(msgspec.Struct, frozen=True, omit_defaults=True):
    index: int
    score: float
    text: str | None = None


class TeiSimilarityInputs(msgspec.Struct, frozen=True):
    source_sentence: str
    sentences: list[str]


class TeiSimilarityParameters(msgspec.Struct, frozen=True, kw_only=True):
    truncate: bool | None = None
    truncation_direction: Direction = "right"
    prompt_name: str | None = None


class TeiSimilarityRequest(msgspec.Struct, frozen=True, kw_only=True):
    inputs: TeiSimilarityInputs
    parameters: TeiSimilarityParameters | None = None
    model: str | None = None


class TeiTokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    inputs: str | list[str]
    add_special_tokens: bool = True
    prompt_name: str | None = None
    model: str | None = None


class TeiToken(msgspec.Struct, frozen=True, kw_only=True):
    """``start``, ``stop``: bytes of the text in UTF-8; null for special tokens."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TeiInfo(msgspec.Struct, frozen=True, kw_only=True):
    """``max_concurrent_requests``, ``max_client_batch_size``: bounds that follow from the queue's, in tokens."""

    model_id: str
    model_sha: str | None = None
    model_dtype: str
    served_model_name: str
    model_type: dict[str, dict[str, Any]]
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int | None = None
    max_client_batch_size: int
    auto_truncate: bool = False
    version: str = __version__
    sha: str | None = None
    docker_label: str | None = None


class TeiError(msgspec.Struct, frozen=True):
    error: str
    error_type: Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]


STATUSES = {"empty_inputs": 400, "wrong_task": 424, "nonfinite_output": 424}
"""Where TEI has another status than we have."""


def _write(problem: Problem) -> tuple[int, TeiError]:
    status = STATUSES.get(problem["code"], int(problem["status"]))
    return status, TeiError(problem["detail"], _error_type(problem["code"], status))


def _error_type(
    code: str, status: int
) -> Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]:
    if code == "empty_inputs":
        return "Empty"
    if code == "bad_encoding":
        return "Tokenizer"
    if status == 429:
        return "Overloaded"
    if status == 503:
        return "Unhealthy"
    return "Backend" if status >= 500 or status == 424 else "Validation"


class Tei(Adapter):
    prefix, tag = "/tei", "text-embeddings-inference"
    tasks = frozenset({"embed", "classify", "rerank", "similarity", "tokenize"})
    dialect = Dialect(TeiError, _write)

    def routes(self, desk: Desk) -> list[HTTPRouteHandler]:
        makers = (_embed_route, _predict_route, _rerank_route, _similarity_route, _tokenize_route)
        return [*(make(self, desk) for make in makers), *_server_routes(self, desk)]


def _options(given: TeiOptions | TeiSimilarityParameters) -> dict[str, Any]:
    return {"truncate": bool(given.truncate), "truncation_side": given.truncation_direction.lower()}


def _embed_route(adapter: Adapter, desk: Desk) -> HTTPRouteHandler:
    decoder, of_texts, of_ids = BodyDecoder(TeiEmbedRequest), desk.tasks["embed"], EmbedIds()
    opt = adapter.opt("Embeddings of texts or of token ids", TeiEmbedRequest, list[list[float]])

    @post("/tei/embed", name="tei-embed", status_code=200, opt=opt)
    async def embed(request: AnyRequest) -> Response[bytes]:
        given = await desk.read(request, decoder, of_texts.name)
        asked = embed_request(
            given.inputs,
            "inputs",
            model=given.model,
            normalize=given.normalize,
            dimensions=given.dimensions,
            prompt_name=given.prompt_name,
            **_options(given),
        )
        reply = await desk.run(request, of_ids if isinstance(asked, EmbedIdsRequest) else of_texts, asked)
        results: list[Any] = reply.results
        return desk.answer(reply, [result.embedding for result in results])

    return embed


def _predict_route(adapter: Adapter, desk: Desk) -> HTTPRouteHandler:
    decoder, task = BodyDecoder(TeiPredictRequest), desk.tasks["classify"]
    opt = adapter.opt("Labels, best first", TeiPredictRequest, list[TeiPrediction | list[TeiPrediction]])

    @post("/tei/predict", name="tei-predict", status_code=200, opt=opt)
    async def predict(request: AnyRequest) -> Response[bytes]:
        given = await desk.read(request, decoder, task.name)
        inputs = _pairs(given.inputs)
        activation: Literal["none", "auto"] = "none" if given.raw_scores else "auto"
        asked = ClassifyRequest(model=given.model, inputs=inputs, activation=activation, **_options(given))
        reply = await desk.run(request, task, asked)
        results: list[Any] = reply.results
        predictions = [[TeiPrediction(each.score, each.label) for each in result.labels] for result in results]
        return desk.answer(reply, predictions if isinstance(inputs, list) else predictions[0])

    return predict


def _pairs(given: str | list[str | list[str]]) -> TextPair | list[str | TextPair]:
    """A flat list is one input, as TEI reads it. Errors: `InvalidField`, `EmptyInputs`."""
    if isinstance(given, str):
        return TextPair(given)
    if not given:
        raise EmptyInputs("the list of inputs is empty; give at least one")
    flat = [one for one in given if isinstance(one, str)]
    if not flat:
        return [TextPair(*one) for one in given]
    if len(flat) < len(given) or len(flat) > 2:
        raise InvalidField(
            'inputs: a flat list is one text or one pair; write several inputs as [["a"], ["b", "c"]]', field="inputs"
        )
    return TextPair(*flat)


def _rerank_route(adapter: Adapter, desk: Desk) -> HTTPRouteHandler:
    decoder, task = BodyDecoder(TeiRerankRequest), desk.tasks["rerank"]
    opt = adapter.opt("Texts by relevance to a query", TeiRerankRequest, list[TeiRank])

    @post("/tei/rerank", name="tei-rerank", status_code=200, opt=opt)
    async def rerank(request: AnyRequest) -> Response[bytes]:
        given = await desk.read(request, decoder, task.name)
        asked = RerankRequest(
            model=given.model,
            query=given.query,
            documents=given.texts,
            activation="none" if given.raw_scores else "auto",
            **_options(given),
        )
        reply = await desk.run(request, task, asked)
        results: list[Any] = reply.results
        texts = given.texts if given.return_text else [None] * len(given.texts)
        return desk.answer(reply, [TeiRank(each.index, each.score, texts[each.index]) for each in results])

    return rerank


def _similarity_route(adapter: Adapter, desk: Desk) -> HTTPRouteHandler:
    decoder, task = BodyDecoder(TeiSimilarityRequest), desk.tasks["similarity"]
    opt = adapter.opt("The cosine of one text with others", TeiSimilarityRequest, list[float])

    @post("/tei/similarity", name="tei-similarity", status_code=200, opt=opt)
    async def similarity(request: AnyRequest) -> Response[bytes]:
        given = await desk.read(request, decoder, task.name)
        parameters = given.parameters or TeiSimilarityParameters()
        if not given.inputs.sentences:
            raise EmptyInputs("inputs.sentences is empty; give at least one")
        if parameters.prompt_name is not None:
            message = "similarity takes no prompt_name; write the prompt into the sentences"
            raise InvalidField(message, field="parameters.prompt_name")
        inputs = SourceSentences(given.inputs.source_sentence, given.inputs.sentences)
        asked = SimilarityRequest(model=given.model, inputs=inputs, **_options(parameters))
        reply = await desk.run(request, task, asked)
        results: list[Any] = reply.results
        return desk.answer(reply, results[0].scores)

    return similarity


def _tokenize_route(adapter: Adapter, desk: Desk) -> HTTPRouteHandler:
    decoder, task = BodyDecoder(TeiTokenizeRequest), TokenizeMarked()
    opt = adapter.opt("Tokens and where they stand", TeiTokenizeRequest, list[list[TeiToken]])

    @post("/tei/tokenize", name="tei-tokenize", status_code=200, opt=opt)
    async def tokenize(request: AnyRequest) -> Response[bytes]:
        given = await desk.read(request, decoder, task.name)
        spec = desk.select(given.model, *MAIN_TASKS, task.name)
        prompt = _prompt(spec, given.prompt_name)
        texts = [prompt + text for text in ([given.inputs] if isinstance(given.inputs, str) else given.inputs)]
        asked = TokenizeRequest(model=spec.name, inputs=texts, add_special_tokens=given.add_special_tokens)
        reply = await desk.run(request, task, asked)
        results: list[Any] = reply.results
        return desk.answer(reply, await asyncio.to_thread(lambda: list(map(_tokens, texts, results))))

    return tokenize


def _prompt(spec: ModelSpec, name: str | None) -> str:
    """Errors: `InvalidField` lists the prompts that there are."""
    if name is None:
        return ""
    if spec.embedding is None:
        raise InvalidField(f"model {spec.name!r} has no prompts", field="prompt_name")
    return named_prompt(spec, name)


def _tokens(text: str, result: MarkedTokensResult) -> list[TeiToken]:
    count = len(result.ids)
    offsets: list[tuple[int, int] | None] = [None] * count if result.offsets is None else [*result.offsets]
    before = _bytes_before(text)
    tokens = []
    for token_id, name, special, span in zip(result.ids, result.tokens, result.special, offsets, strict=True):
        if special or span is None:
            tokens.append(TeiToken(id=token_id, text=name, special=special, start=None, stop=None))
        else:
            start, stop = span
            piece = text[start:stop]
            tokens.append(TeiToken(id=token_id, text=piece, special=False, start=before[start], stop=before[stop]))
    return tokens


def _bytes_before(text: str) -> list[int]:
    """For each place in the text, its end included, how many bytes of UTF-8 stand before it."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    widths = 1 + (codes > 0x7F).astype(np.int64) + (codes > 0x7FF) + (codes > 0xFFFF)
    before: list[int] = [0, *np.cumsum(widths).tolist()]
    return before


def _server_routes(adapter: Adapter, desk: Desk) -> list[HTTPRouteHandler]:
    @get("/tei/info", name="tei-info", opt=adapter.opt("The model that answers; ?model= for another", None, TeiInfo))
    async def info(request: AnyRequest) -> Response[bytes]:
        spec = desk.select(request.query_params.get("model"), *MAIN_TASKS)
        most = desk.server.max_queue_tokens
        described = TeiInfo(
            model_id=spec.source,
            model_dtype=spec.dtype,
            served_model_name=spec.name,
            model_type=_model_type(spec),
            max_concurrent_requests=most,
            max_input_length=spec.max_length,
            max_batch_tokens=spec.max_batch_tokens,
            max_client_batch_size=most,
        )
        return json_response(described)

    @get("/tei/health", name="tei-health", opt=adapter.opt("Every model is loaded and its worker alive", public=True))
    async def health() -> Response[bytes]:
        readiness = desk.service.readiness()
        if not readiness.ready:
            raise Unavailable(f"unhealthy: {'; '.join(readiness.reasons)}", RETRY_AFTER_S)
        return Response(b"", media_type="application/json")

    return [info, health]


def _model_type(spec: ModelSpec) -> dict[str, dict[str, Any]]:
    """Errors: `WrongTask` for a model that TEI would not serve."""
    if spec.embedding is not None:
        return {"embedding": {"pooling": spec.embedding.pooling}}
    if spec.head != "sequence-classification":
        raise WrongTask(f"model {spec.name!r} serves neither of {', '.join(MAIN_TASKS)}")
    labels = {str(index): label for index, label in enumerate(spec.labels)}
    described = {"id2label": labels, "label2id": {label: int(index) for index, label in labels.items()}}
    return {"reranker" if len(labels) == 1 else "classifier": described}
