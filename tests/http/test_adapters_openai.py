"""/v1: OpenAI's models and embeddings, and the rerank route of Cohere and Jina."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from padserve import errors
from padserve.service.readiness import Readiness
from padserve.tasks.embed import EmbedRequest
from padserve.tasks.embed_ids import EmbedIds, EmbedIdsRequest
from padserve.tasks.rerank import RerankRequest
from padserve.tasks.table import get_task
from tests.http.compat import TaskService, compat_client, compat_metrics

pytestmark = pytest.mark.asyncio


@pytest.fixture
def service() -> TaskService:
    return TaskService()


@pytest_asyncio.fixture
async def client(service: TaskService) -> AsyncIterator[httpx.AsyncClient]:
    async with compat_client(service, compat_metrics()) as client:
        yield client


@pytest_asyncio.fixture
async def official(client: httpx.AsyncClient) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url="http://padserve/v1", api_key="any", http_client=client, max_retries=0)


async def embed(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post("/v1/embeddings", json=body)


async def error(reply: httpx.Response) -> tuple[int, str, str, Any]:
    found = reply.json()["error"]
    return reply.status_code, found["type"], found["code"], found["param"]


async def test_one_text(client: httpx.AsyncClient, service: TaskService) -> None:
    reply = await embed(client, input="a", model="org/bert", user="me", dimensions=2)
    assert reply.json() == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}],
        "model": "org/bert",
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }
    assert service.requests == [EmbedRequest(inputs="a", model="org/bert", dimensions=2)]
    assert service.tasks == [get_task("embed")]


async def test_texts_with_native_options(client: httpx.AsyncClient, service: TaskService) -> None:
    options = {"truncate": True, "truncation_side": "left", "priority": "bulk", "timeout_ms": 900}
    reply = await embed(client, input=["a", "b"], **options)
    assert [entry["index"] for entry in reply.json()["data"]] == [0, 1]
    assert service.requests == [EmbedRequest(inputs=["a", "b"], **options)]  # type: ignore[arg-type]


@pytest.mark.parametrize(("given", "ids"), [([5, 6], [[5, 6]]), ([[5, 6], [7]], [[5, 6], [7]])])
async def test_token_ids(client: httpx.AsyncClient, service: TaskService, given: Any, ids: Any) -> None:
    reply = await embed(client, input=given)
    assert len(reply.json()["data"]) == len(ids)
    assert service.requests == [EmbedIdsRequest(ids=ids)]
    assert isinstance(service.tasks[0], EmbedIds)


@pytest.mark.parametrize("encoding_format", ["base64", "float", None])
async def test_encodings(client: httpx.AsyncClient, encoding_format: str | None) -> None:
    [entry] = (await embed(client, input="a", encoding_format=encoding_format)).json()["data"]
    assert entry["embedding"] == ("AAAAPwAAgL8=" if encoding_format == "base64" else [0.5, -1.0])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": ["a", 5]}, "input"),
        ({"input": ["a", [5]]}, "input"),
        ({"input": [5, [5]]}, "input"),
        ({"input": [5.0]}, "input[0]"),
        ({"input": [True]}, "input[0]"),
        ({"input": [-1]}, "input[0]"),
        ({"input": [10**30]}, "input[0]"),
        ({"input": [["a"]]}, "input[0][0]"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": "2"}, "dimensions"),
        ({"input": "a", "model": 5}, "model"),
        ({"input": "a", "truncate": "yes"}, "truncate"),
    ],
)
async def test_wrong_fields_are_named(client: httpx.AsyncClient, body: dict[str, Any], param: str) -> None:
    assert await error(await embed(client, **body)) == (400, "invalid_request_error", "invalid_field", param)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (errors.EmptyInputs("no"), (400, "invalid_request_error", "empty_inputs", None)),
        (errors.WrongTask("no"), (400, "invalid_request_error", "wrong_task", "model")),
        (errors.InputTooLong(9, 8), (400, "invalid_request_error", "context_length_exceeded", None)),
        (errors.InvalidField("no", field="dimensions"), (400, "invalid_request_error", "invalid_field", "dimensions")),
        (errors.UnknownModel("no"), (404, "invalid_request_error", "model_not_found", "model")),
        (errors.QueueFull("no", 1), (429, "rate_limit_error", "rate_limit_exceeded", None)),
        (errors.NonfiniteOutput("no"), (500, "server_error", "nonfinite_output", None)),
        (errors.Draining("no"), (503, "server_error", "draining", None)),
    ],
)
async def test_error_words(
    client: httpx.AsyncClient, service: TaskService, raised: Exception, expected: tuple[Any, ...]
) -> None:
    service.outcome = raised
    assert await error(await embed(client, input="a")) == expected


async def test_models(client: httpx.AsyncClient) -> None:
    listed = (await client.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["org/bert", "topics", "masks", "writer"]
    for model in listed["data"]:
        assert (model["object"], model["owned_by"], type(model["created"])) == ("model", "padserve", int)
        assert (await client.get(f"/v1/models/{model['id']}")).json() == model
    assert (await client.get("/v1/models/org%2Fbert")).json()["id"] == "org/bert"


async def test_an_unknown_model(client: httpx.AsyncClient, service: TaskService) -> None:
    reply = await client.get("/v1/models/gpt-5")
    assert await error(reply) == (404, "invalid_request_error", "model_not_found", "model")
    assert "org/bert" in reply.json()["error"]["message"]
    service.state = Readiness(ready=False, started=False)
    reply = await client.get("/v1/models/gpt-5")
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "2")


async def test_the_official_package(official: openai.AsyncOpenAI, service: TaskService) -> None:
    coded = await official.embeddings.create(model="org/bert", input=["a", "b"])
    assert [entry.embedding for entry in coded.data] == [[0.5, -1.0]] * 2
    assert service.requests[-1].encoding == "base64"
    plain = await official.embeddings.create(model="org/bert", input=[[5]], encoding_format="float", user="me")
    assert (plain.data[0].embedding, plain.usage.total_tokens) == ([0.5, -1.0], 7)
    assert [model.id async for model in official.models.list()] == ["org/bert", "topics", "masks", "writer"]
    assert (await official.models.retrieve("topics")).id == "topics"


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (errors.InputTooLong(9, 8), openai.BadRequestError),
        (errors.Unauthorized("no"), openai.AuthenticationError),
        (errors.UnknownModel("no"), openai.NotFoundError),
        (errors.QueueFull("no", 1), openai.RateLimitError),
        (errors.EngineDown("no"), openai.InternalServerError),
    ],
)
async def test_the_official_package_knows_the_errors(
    official: openai.AsyncOpenAI, service: TaskService, raised: Exception, expected: type[openai.APIStatusError]
) -> None:
    service.outcome = raised
    with pytest.raises(expected) as caught:
        await official.embeddings.create(model="org/bert", input="a")
    assert caught.value.body["message"] == raised.message  # type: ignore[index,attr-defined]
    assert caught.value.request_id


async def rerank(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post("/v1/rerank", json={"query": "q"} | body)


async def test_rerank(client: httpx.AsyncClient, service: TaskService) -> None:
    body = {"documents": ["a", {"text": "b", "title": "x"}, "c"], "model": "org/bert", "max_chunks_per_doc": 3}
    reply = await client.post("/v1/rerank", json={"query": "q"} | body, headers={"X-Request-Id": "r-1"})
    assert reply.json() == {
        "id": "r-1",
        "object": "list",
        "model": "org/bert",
        "results": [{"index": place, "relevance_score": place / 8} for place in (2, 1, 0)],
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }
    assert service.requests == [RerankRequest(query="q", documents=["a", "b", "c"], model="org/bert")]
    assert service.tasks == [get_task("rerank")]


@pytest.mark.parametrize(("top_n", "kept"), [(1, [1]), (2, [1, 0]), (9, [1, 0]), (None, [1, 0])])
async def test_top_n(client: httpx.AsyncClient, top_n: int | None, kept: list[int]) -> None:
    results = (await rerank(client, documents=["a", "b"], top_n=top_n)).json()["results"]
    assert [result["index"] for result in results] == kept


async def test_documents_come_back_when_asked(client: httpx.AsyncClient) -> None:
    results = (await rerank(client, documents=["a", {"text": "b"}], return_documents=True)).json()["results"]
    assert [result["document"] for result in results] == [{"text": "b"}, {"text": "a"}]
    results = (await rerank(client, documents=["a", "b"], return_documents=False)).json()["results"]
    assert not [result for result in results if "document" in result]


async def test_a_failing_document_is_told_even_beyond_top_n(client: httpx.AsyncClient, service: TaskService) -> None:
    service.failing = errors.InputTooLong(20, 16)
    reply = await rerank(client, documents=["a", "b"], top_n=1)
    assert (await error(reply))[:3] == (400, "invalid_request_error", "context_length_exceeded")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "documents"),
        ({"documents": "a"}, "documents"),
        ({"documents": [5]}, "documents[0]"),
        ({"documents": [{"image": "a"}]}, "documents[0].text"),
        ({"documents": ["a"], "query": None}, "query"),
        ({"documents": ["a"], "top_n": 0}, "top_n"),
        ({"documents": ["a"], "top_n": "1"}, "top_n"),
        ({"documents": ["a"], "return_documents": 1}, "return_documents"),
    ],
)
async def test_wrong_fields_of_rerank(client: httpx.AsyncClient, body: dict[str, Any], param: str) -> None:
    assert await error(await rerank(client, **body)) == (400, "invalid_request_error", "invalid_field", param)
