"""``/v1/rerank``, as Cohere and Jina have it."""

from typing import Any, Literal

import msgspec
from litestar import Response, post
from litestar.handlers import HTTPRouteHandler

from padserve.http.adapters.base import Adapter, AnyRequest, Desk
from padserve.http.adapters.fields import Count, NativeOptions, native
from padserve.http.adapters.openai_errors import OPENAI_ERRORS
from padserve.http.body import BodyDecoder
from padserve.http.exchange import exchange_of
from padserve.service.service import Reply
from padserve.tasks.rerank import RerankRequest


class RerankDocument(msgspec.Struct, frozen=True):
    text: str


class CohereRerankRequest(NativeOptions, frozen=True, kw_only=True):
    """``top_n``: how many results come back. Fields that are not listed are ignored."""

    query: str
    documents: list[str | RerankDocument]
    model: str | None = None
    top_n: Count | None = None
    return_documents: bool | None = None


class CohereRerankResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``index``: place in ``documents``."""

    index: int
    relevance_score: float
    document: RerankDocument | None = None


class RerankTokens(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class CohereRerankReply(msgspec.Struct, frozen=True, kw_only=True):
    """``results``: best first."""

    id: str
    object: Literal["list"] = "list"
    model: str
    results: list[CohereRerankResult]
    usage: RerankTokens


class Rerank(Adapter):
    prefix, tag = "/v1", "cohere, jina"
    tasks = frozenset({"rerank"})
    dialect = OPENAI_ERRORS

    def routes(self, desk: Desk) -> list[HTTPRouteHandler]:
        decoder, task = BodyDecoder(CohereRerankRequest), desk.tasks["rerank"]
        opt = self.opt("Documents by relevance to a query", CohereRerankRequest, CohereRerankReply)

        @post("/v1/rerank", name="cohere-rerank", status_code=200, opt=opt)
        async def rerank(request: AnyRequest) -> Response[bytes]:
            given = await desk.read(request, decoder, task.name)
            documents = [one if isinstance(one, str) else one.text for one in given.documents]
            # not cut by the task: a document that failed would be cut off, as it comes last
            asked = RerankRequest(model=given.model, query=given.query, documents=documents, **native(given))
            reply = await desk.run(request, task, asked)
            shown = documents if given.return_documents else None
            return desk.answer(reply, _ranked(reply, exchange_of(request.scope).request_id, shown, given.top_n))

        return [rerank]


def _ranked(reply: Reply, reply_id: str, documents: list[str] | None, top_n: int | None) -> CohereRerankReply:
    results: list[Any] = reply.results[:top_n]
    tokens = reply.usage.input_tokens
    return CohereRerankReply(
        id=reply_id,
        model=reply.model,
        results=[
            CohereRerankResult(
                index=result.index,
                relevance_score=result.score,
                document=None if documents is None else RerankDocument(documents[result.index]),
            )
            for result in results
        ],
        usage=RerankTokens(prompt_tokens=tokens, total_tokens=tokens),
    )
