"""/v2: the Open Inference Protocol."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
import pytest_asyncio

from padserve import __version__
from padserve.service.readiness import Readiness
from padserve.tasks.classify import ClassifyRequest, TextPair
from padserve.tasks.embed import EmbedRequest
from tests.http.compat import BERT, TaskService, compat_client, compat_metrics, tensor

pytestmark = pytest.mark.asyncio


@pytest.fixture
def service() -> TaskService:
    service = TaskService()
    service.models[0] = replace(BERT, name="bert")  # its other name has a slash
    return service


@pytest_asyncio.fixture
async def client(service: TaskService) -> AsyncIterator[httpx.AsyncClient]:
    async with compat_client(service, compat_metrics()) as client:
        yield client


async def infer(client: httpx.AsyncClient, model: str, *inputs: dict[str, Any], **body: Any) -> httpx.Response:
    return await client.post(f"/v2/models/{model}/infer", json={"inputs": list(inputs)} | body)


async def test_embeddings(client: httpx.AsyncClient, service: TaskService) -> None:
    reply = await infer(client, "bert", tensor("a", "b", "c"), id="42")
    assert reply.json() == {
        "model_name": "bert",
        "id": "42",
        "outputs": [{"name": "embedding", "datatype": "FP32", "shape": [3, 2], "data": [0.5, -1.0] * 3}],
    }
    assert service.requests == [EmbedRequest(model="bert", inputs=["a", "b", "c"])]


async def test_labels(client: httpx.AsyncClient, service: TaskService) -> None:
    reply = await infer(client, "topics", tensor("a", "b"))
    assert reply.json() == {
        "model_name": "topics",
        "outputs": [
            {"name": "labels", "datatype": "BYTES", "shape": [2, 2], "data": ["b", "a", "b", "a"]},
            {"name": "scores", "datatype": "FP32", "shape": [2, 2], "data": [0.75, 0.25, 0.75, 0.25]},
        ],
    }
    assert service.requests == [ClassifyRequest(model="topics", inputs=["a", "b"])]


async def test_parameters(client: httpx.AsyncClient, service: TaskService) -> None:
    shared = {"truncate": True, "truncation_side": "left", "priority": "bulk", "timeout_ms": 9}
    of_embed = {"normalize": False, "dimensions": 2, "prompt_name": "query"}
    of_classify: dict[str, Any] = {"top_k": 1, "activation": "none"}
    parameters = {**shared, **of_embed, **of_classify, "binary_data_output": True}
    await infer(client, "bert", tensor("a"), parameters=parameters)
    reply = await infer(client, "topics", tensor("a"), parameters=parameters)
    assert service.requests == [
        EmbedRequest(model="bert", inputs=["a"], **shared, **of_embed),  # type: ignore[arg-type]
        ClassifyRequest(model="topics", inputs=["a"], **shared, **of_classify),  # type: ignore[arg-type]
    ]
    assert [output["shape"] for output in reply.json()["outputs"]] == [[1, 1], [1, 1]]


@pytest.mark.parametrize(
    ("shape", "data"), [([2], ["a", "b"]), ([2, 1], [["a"], ["b"]]), ([2, 1], ["a", "b"]), ([1, 2], [["a", "b"]])]
)
async def test_data_is_nested_or_flat(client: httpx.AsyncClient, service: TaskService, shape: Any, data: Any) -> None:
    reply = await infer(client, "bert", tensor(name="input-0", shape=shape, data=data))
    assert reply.json()["outputs"][0]["shape"] == [2, 2]
    assert service.requests[-1].inputs == ["a", "b"]


@pytest.mark.parametrize("turned", [False, True])
async def test_pairs(client: httpx.AsyncClient, service: TaskService, turned: bool) -> None:
    tensors = [tensor("a", "b"), tensor("c", "d", name="text_pair")]
    await infer(client, "topics", *(reversed(tensors) if turned else tensors))
    assert service.requests[-1].inputs == [TextPair("a", "c"), TextPair("b", "d")]


async def test_some_outputs(client: httpx.AsyncClient) -> None:
    reply = await infer(
        client, "topics", tensor("a"), outputs=[{"name": "scores", "parameters": {"binary_data": True}}]
    )
    assert [output["name"] for output in reply.json()["outputs"]] == ["scores"]
    refused = await infer(client, "topics", tensor("a"), outputs=[{"name": "logits"}])
    assert refused.status_code == 400
    assert "labels, scores" in refused.json()["error"]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ([], "length"),
        ([tensor("a", datatype="FP32")], "BYTES"),
        ([tensor(5)], "no text"),
        ([tensor("a", data=[["a"]])], "no text"),
        ([tensor("a", shape=[2])], "2 elements"),
        ([tensor("a", shape=[])], "shape"),
        ([tensor("a", shape=[-1])], "shape"),
        ([tensor("a", shape=[10**30])], "shape"),
        ([tensor("a", shape=["1"])], "shape"),
        ([{"name": "text", "shape": [1], "datatype": "BYTES"}], "data"),
        ([tensor("a"), tensor("b", name="other")], "text_pair"),
        ([tensor("a", name="text_pair"), tensor("b", name="text_pair")], "text_pair"),
        ([tensor("a"), tensor("b", "c", name="text_pair")], "two by two"),
        ([tensor("a")] * 3, "length"),
        (["a"], "inputs[0]"),
    ],
)
async def test_wrong_tensors(client: httpx.AsyncClient, service: TaskService, inputs: list[Any], said: str) -> None:
    reply = await infer(client, "topics", *inputs)
    assert reply.status_code == 400
    assert said in reply.json()["error"]
    assert not service.requests


async def test_deep_data(client: httpx.AsyncClient) -> None:
    nested: Any = "a"
    for _ in range(200):
        nested = [nested]
    assert (await infer(client, "topics", tensor(data=nested, shape=[1] * 8))).status_code == 400


async def test_pairs_are_no_input_of_an_embedding_model(client: httpx.AsyncClient) -> None:
    reply = await infer(client, "bert", tensor("a"), tensor("b", name="text_pair"))
    assert (reply.status_code, reply.json()) == (400, {"error": "inputs: 'bert' takes one tensor"})


async def test_binary_tensors_are_refused(client: httpx.AsyncClient) -> None:
    headers = {"Inference-Header-Content-Length": "10"}
    reply = await client.post("/v2/models/bert/infer", json={"inputs": [tensor("a")]}, headers=headers)
    assert reply.status_code == 400
    assert "JSON" in reply.json()["error"]


@pytest.mark.parametrize(("model", "status"), [("none", 404), ("masks", 400)])
async def test_models_that_do_not_infer(client: httpx.AsyncClient, model: str, status: int) -> None:
    reply = await infer(client, model, tensor("a"))
    assert reply.status_code == status
    assert model in reply.json()["error"]


async def test_server(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v2")).json() == {"name": "padserve", "version": __version__, "extensions": []}


async def test_model(client: httpx.AsyncClient) -> None:
    text = [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    shared = {"versions": [], "platform": "padserve"}
    assert (await client.get("/v2/models/bert")).json() == {
        "name": "bert",
        "inputs": text,
        "outputs": [{"name": "embedding", "datatype": "FP32", "shape": [-1, 2]}],
        **shared,
    }
    outputs = (await client.get("/v2/models/topics")).json()["outputs"]
    assert [(output["name"], output["datatype"], output["shape"]) for output in outputs] == [
        ("labels", "BYTES", [-1, 2]),
        ("scores", "FP32", [-1, 2]),
    ]
    masks = (await client.get("/v2/models/masks")).json()
    assert (masks["inputs"], masks["outputs"]) == ([], [])
    reply = await client.get("/v2/models/none")
    assert reply.status_code == 404
    assert "bert" in reply.json()["error"]


async def test_health(client: httpx.AsyncClient, service: TaskService) -> None:
    paths = ("/v2/health/live", "/v2/health/ready", "/v2/models/bert/ready")
    replies = [await client.get(path) for path in paths]
    assert [reply.json() for reply in replies] == [{"live": True}, {"ready": True}, {"ready": True, "name": "bert"}]
    service.state = Readiness(ready=False, started=True)
    replies = [await client.get(path) for path in paths]
    assert [reply.status_code for reply in replies] == [200, 503, 503]
    assert replies[1].json() == {"ready": False}
    assert int(replies[1].headers["retry-after"]) >= 1
    assert (await client.get("/v2/models/none/ready")).status_code == 404
    service.state = Readiness(ready=False, started=False)
    assert (await client.get("/v2/models/none/ready")).status_code == 503
