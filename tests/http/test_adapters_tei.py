"""/tei: the routes of text-embeddings-inference."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from padserve import __version__, errors
from padserve.config.structs import ServerConfig
from padserve.service.readiness import Readiness
from padserve.tasks.classify import ClassifyRequest, TextPair
from padserve.tasks.embed import EmbedRequest
from padserve.tasks.embed_ids import EmbedIdsRequest
from padserve.tasks.rerank import RerankRequest
from padserve.tasks.similarity import SimilarityRequest, SourceSentences
from padserve.tasks.tokenize import TokenizeRequest
from tests.http.compat import BERT, MASKS, TOPICS, TaskService, compat_client, compat_metrics

pytestmark = pytest.mark.asyncio
PREDICTIONS = [{"score": 0.75, "label": "b"}, {"score": 0.25, "label": "a"}]


@pytest.fixture
def service() -> TaskService:
    return TaskService()


@pytest_asyncio.fixture
async def client(service: TaskService) -> AsyncIterator[httpx.AsyncClient]:
    async with compat_client(service, compat_metrics()) as client:
        yield client


def error(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error_type"]


async def test_embed(client: httpx.AsyncClient, service: TaskService) -> None:
    one = await client.post("/tei/embed", json={"inputs": "a"})
    two = await client.post("/tei/embed", json={"inputs": ["a", "b"]})
    assert (one.json(), two.json()) == ([[0.5, -1.0]], [[0.5, -1.0]] * 2)
    assert service.requests == [EmbedRequest(inputs="a"), EmbedRequest(inputs=["a", "b"])]


async def test_options_of_embed(client: httpx.AsyncClient, service: TaskService) -> None:
    body = {
        "inputs": "a",
        "model": "org/bert",
        "truncate": True,
        "truncation_direction": "Left",
        "prompt_name": "query",
        "normalize": False,
        "dimensions": 2,
    }
    await client.post("/tei/embed", json=body)
    assert service.requests == [
        EmbedRequest(
            inputs="a",
            model="org/bert",
            truncate=True,
            truncation_side="left",
            prompt_name="query",
            normalize=False,
            dimensions=2,
        )
    ]


async def test_nothing_is_cut_unasked(client: httpx.AsyncClient, service: TaskService) -> None:
    await client.post("/tei/embed", json={"inputs": "a", "truncate": None})
    assert service.requests[-1].truncate is False
    assert (await client.get("/tei/info")).json()["auto_truncate"] is False


@pytest.mark.parametrize(("given", "ids"), [([5, 6], [[5, 6]]), ([[5], [6, 7]], [[5], [6, 7]])])
async def test_token_ids(client: httpx.AsyncClient, service: TaskService, given: Any, ids: Any) -> None:
    assert len((await client.post("/tei/embed", json={"inputs": given})).json()) == len(ids)
    assert service.requests == [EmbedIdsRequest(ids=ids)]


@pytest.mark.parametrize(
    ("given", "asked", "many"),
    [
        ("a", TextPair("a"), False),
        (["a"], TextPair("a"), False),
        (["a", "b"], TextPair("a", "b"), False),
        ([["a"]], [TextPair("a")], True),
        ([["a"], ["b", "c"]], [TextPair("a"), TextPair("b", "c")], True),
    ],
)
async def test_predict(client: httpx.AsyncClient, service: TaskService, given: Any, asked: Any, many: bool) -> None:
    reply = await client.post("/tei/predict", json={"inputs": given})
    assert reply.json() == ([PREDICTIONS] * len(asked) if many else PREDICTIONS)
    assert service.requests == [ClassifyRequest(inputs=asked)]


async def test_raw_scores(client: httpx.AsyncClient, service: TaskService) -> None:
    await client.post("/tei/predict", json={"inputs": "a", "raw_scores": True, "model": "topics"})
    await client.post("/tei/rerank", json={"query": "q", "texts": ["a"], "raw_scores": True})
    assert [request.activation for request in service.requests] == ["none", "none"]
    assert service.requests[0].model == "topics"


@pytest.mark.parametrize("given", [["a", "b", "c"], ["a", ["b"]], [["a"], "b"], [["a", "b", "c"]], [[]], [5], {}])
async def test_inputs_that_predict_does_not_take(client: httpx.AsyncClient, given: Any) -> None:
    assert error(await client.post("/tei/predict", json={"inputs": given})) == (422, "Validation")


async def test_rerank(client: httpx.AsyncClient, service: TaskService) -> None:
    body = {"query": "q", "texts": ["a", "b"]}
    plain = await client.post("/tei/rerank", json=body)
    told = await client.post("/tei/rerank", json=body | {"return_text": True})
    assert plain.json() == [{"index": 1, "score": 0.125}, {"index": 0, "score": 0.0}]
    assert told.json() == [{"index": 1, "score": 0.125, "text": "b"}, {"index": 0, "score": 0.0, "text": "a"}]
    assert service.requests == [RerankRequest(query="q", documents=["a", "b"])] * 2


async def test_similarity(client: httpx.AsyncClient, service: TaskService) -> None:
    inputs = {"source_sentence": "a", "sentences": ["b", "c"]}
    reply = await client.post("/tei/similarity", json={"inputs": inputs, "parameters": {"truncate": True}})
    assert reply.json() == [0.5, 0.5]
    assert service.requests == [SimilarityRequest(inputs=SourceSentences("a", ["b", "c"]), truncate=True)]
    refused = await client.post("/tei/similarity", json={"inputs": inputs, "parameters": {"prompt_name": "query"}})
    assert error(refused) == (422, "Validation")


async def test_tokenize(client: httpx.AsyncClient, service: TaskService) -> None:
    reply = await client.post("/tei/tokenize", json={"inputs": "aé😀b"})
    assert reply.json() == [
        [
            {"id": 1, "text": "<s>", "special": True, "start": None, "stop": None},
            {"id": 9, "text": "a", "special": False, "start": 0, "stop": 1},
            {"id": 9, "text": "é", "special": False, "start": 1, "stop": 3},
            {"id": 9, "text": "😀", "special": False, "start": 3, "stop": 7},
            {"id": 9, "text": "b", "special": False, "start": 7, "stop": 8},
            {"id": 2, "text": "</s>", "special": True, "start": None, "stop": None},
        ]
    ]
    assert service.requests == [TokenizeRequest(inputs=["aé😀b"], model="org/bert")]


async def test_prompts_of_tokenize(client: httpx.AsyncClient, service: TaskService) -> None:
    body = {"inputs": ["a", "b"], "prompt_name": "query", "add_special_tokens": False}
    await client.post("/tei/tokenize", json=body)
    assert service.requests == [TokenizeRequest(inputs=["q: a", "q: b"], model="org/bert", add_special_tokens=False)]
    for wrong in ({"prompt_name": "none"}, {"model": "topics"}):
        reply = await client.post("/tei/tokenize", json=body | wrong)
        assert error(reply) == (422, "Validation"), wrong


async def test_info(client: httpx.AsyncClient, service: TaskService) -> None:
    most = ServerConfig().max_queue_tokens
    assert (await client.get("/tei/info")).json() == {
        "model_id": "starter:tiny",
        "model_sha": None,
        "model_dtype": "float32",
        "served_model_name": "org/bert",
        "model_type": {"embedding": {"pooling": "mean"}},
        "max_concurrent_requests": most,
        "max_input_length": 16,
        "max_batch_tokens": 64,
        "max_batch_requests": None,
        "max_client_batch_size": most,
        "auto_truncate": False,
        "version": __version__,
        "sha": None,
        "docker_label": None,
    }
    labels = {"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}}
    assert (await client.get("/tei/info?model=topics")).json()["model_type"] == {"classifier": labels}
    assert error(await client.get("/tei/info?model=none")) == (404, "Validation")
    assert error(await client.get("/tei/info?model=masks")) == (424, "Backend")


async def test_the_model_that_answers(client: httpx.AsyncClient, service: TaskService) -> None:
    service.models = [MASKS, TOPICS]
    assert (await client.get("/tei/info")).json()["served_model_name"] == "topics"
    service.models = [MASKS]
    assert error(await client.get("/tei/info")) == (424, "Backend")
    await client.post("/tei/tokenize", json={"inputs": "a"})
    assert service.requests[-1].model == "masks"
    service.state = Readiness(ready=False, started=False)
    assert error(await client.get("/tei/info")) == (503, "Unhealthy")
    service.models = [BERT]
    service.state = Readiness(ready=True, started=True)
    assert (await client.get("/tei/info")).status_code == 200


async def test_health(client: httpx.AsyncClient, service: TaskService) -> None:
    reply = await client.get("/tei/health")
    assert (reply.status_code, reply.content) == (200, b"")
    service.state = Readiness(ready=False, started=True, reasons=["worker 1 died"])
    reply = await client.get("/tei/health")
    assert reply.status_code == 503
    assert reply.json() == {"error": "unhealthy: worker 1 died", "error_type": "Unhealthy"}
    assert int(reply.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (errors.EmptyInputs("no"), (400, "Empty")),
        (errors.BadEncoding("no"), (400, "Tokenizer")),
        (errors.InputTooLong(9, 8), (422, "Validation")),
        (errors.InvalidField("no"), (422, "Validation")),
        (errors.UnknownModel("no"), (404, "Validation")),
        (errors.WrongTask("no"), (424, "Backend")),
        (errors.NonfiniteOutput("no"), (424, "Backend")),
        (errors.QueueFull("no", 1), (429, "Overloaded")),
        (errors.EngineDown("no"), (503, "Unhealthy")),
        (errors.DeadlineExceeded("no"), (504, "Backend")),
    ],
)
async def test_error_types(
    client: httpx.AsyncClient, service: TaskService, raised: Exception, expected: tuple[int, str]
) -> None:
    service.outcome = raised
    assert error(await client.post("/tei/embed", json={"inputs": "a"})) == expected


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tei/embed", {}),
        ("/tei/embed", {"inputs": ["a", 5]}),
        ("/tei/embed", {"inputs": "a", "normalize": "no"}),
        ("/tei/embed", {"inputs": "a", "truncation_direction": "up"}),
        ("/tei/embed", {"inputs": "a", "dimensions": 0}),
        ("/tei/rerank", {"query": "q"}),
        ("/tei/rerank", {"query": "q", "texts": "a"}),
        ("/tei/rerank", {"query": "q", "texts": [5]}),
        ("/tei/similarity", {"inputs": {"source_sentence": "a"}}),
        ("/tei/similarity", {"inputs": {"source_sentence": "a", "sentences": "b"}}),
        ("/tei/tokenize", {"inputs": [["a"]]}),
        ("/tei/tokenize", {"inputs": "a", "add_special_tokens": 1}),
    ],
)
async def test_wrong_fields(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    assert error(await client.post(path, json=body)) == (422, "Validation")


@pytest.mark.parametrize(
    ("path", "body"),
    [("/tei/predict", {"inputs": []}), ("/tei/similarity", {"inputs": {"source_sentence": "a", "sentences": []}})],
)
async def test_empty_lists(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    assert error(await client.post(path, json=body)) == (400, "Empty")
