"""A pretended service with canned results of the real tasks, and one good request for every adapter's POST route."""

from dataclasses import dataclass, replace
from typing import Any

import httpx
from litestar import Litestar

from padserve.config.structs import ServerConfig
from padserve.core import EmbeddingSpec, ModelSpec, Usage
from padserve.errors import PadserveError
from padserve.http.build import build_app
from padserve.service.service import Reply, RequestContext
from padserve.tasks.base import ItemError, Task
from padserve.tasks.classify import ClassifyResult, LabelScore
from padserve.tasks.embed import EmbedResult
from padserve.tasks.generating import GeneratingResult, Output
from padserve.tasks.rerank import RerankFailure, RerankResult
from padserve.tasks.similarity import SimilarityResult
from padserve.tasks.table import all_tasks
from padserve.tasks.tokenize_marked import MarkedTokensResult
from padserve.telemetry.metrics import Metrics
from tests.http.conftest import MAX_BODY_BYTES, SPEC, EchoRequest, FakeService, connect

BERT = replace(
    SPEC,
    name="org/bert",
    tasks=("embed", "rerank", "similarity", "tokenize"),
    embedding=EmbeddingSpec(2, "mean", {"query": "q: "}),
)
TOPICS = replace(
    SPEC,
    name="topics",
    head="sequence-classification",
    tasks=("classify", "tokenize"),
    labels=("a", "b"),
    default=False,
)
MASKS = replace(SPEC, name="masks", head="masked-lm", tasks=("fill-mask", "tokenize"), default=False)
WRITER = replace(SPEC, name="writer", head="causal-lm", tasks=("generate", "tokenize"), default=False)


class TaskService(FakeService):
    """``failing``: the error of the second result, where there are several."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: list[Task[Any]] = []
        self.models = [BERT, TOPICS, MASKS, WRITER]
        self.failing: PadserveError | None = None

    async def run(self, task: Task[Any], request: Any, context: RequestContext) -> Reply:
        reply = await super().run(task, EchoRequest(inputs="x"), context)
        self.requests[-1] = request
        self.tasks.append(task)
        results = RESULTS[task.name](request)
        if self.failing is not None:
            results[1] = _failed(self.failing, task.name)
        return Reply(request.model or "org/bert", results, Usage(input_tokens=7), reply.timings)

    def specs(self) -> list[ModelSpec]:
        return self.models


def _failed(error: PadserveError, task: str) -> Any:
    problem = ItemError.of(error)
    return RerankFailure(truncated=False, index=1, error=problem.error) if task == "rerank" else problem


def _embedded(request: Any) -> list[Any]:
    inputs = getattr(request, "ids", None) or request.inputs
    count = len(inputs) if isinstance(inputs, list) else 1
    vector: Any = "AAAAPwAAgL8=" if request.encoding == "base64" else [0.5, -1.0]
    return [EmbedResult(embedding=vector, tokens=3, truncated=False) for _ in range(count)]


def _classified(request: Any) -> list[Any]:
    count = len(request.inputs) if isinstance(request.inputs, list) else 1
    labels = [LabelScore("b", 0.75), LabelScore("a", 0.25)]
    return [ClassifyResult(labels=labels[: request.top_k], tokens=3, truncated=False) for _ in range(count)]


def _ranked(request: Any) -> list[Any]:
    places = reversed(range(len(request.documents)))
    return [RerankResult(index=place, score=place / 8, tokens=3, truncated=False) for place in places]


def _compared(request: Any) -> list[Any]:
    return [SimilarityResult(scores=[0.5] * len(request.inputs.sentences), tokens=3, truncated=False)]


def _tokenized(request: Any) -> list[Any]:
    """One token for every character, between two special ones."""

    def result(text: str) -> MarkedTokensResult:
        spans = [(place, place + 1) for place in range(len(text))]
        return MarkedTokensResult(
            truncated=False,
            ids=[1, *(9 for _ in text), 2],
            tokens=["<s>", *text, "</s>"],
            offsets=[(0, 0), *spans, (0, 0)],
            special=[True, *(False for _ in text), True],
        )

    return [result(text) for text in request.inputs]


def _generated(request: Any) -> list[Any]:
    count = len(request.inputs) if isinstance(request.inputs, list) and request.inputs else 1
    outputs = [Output("b", "stop")]
    return [GeneratingResult(outputs=outputs, tokens=3, truncated=False) for _ in range(count)]


RESULTS = {
    "generate": _generated,
    "embed": _embedded,
    "classify": _classified,
    "rerank": _ranked,
    "similarity": _compared,
    "tokenize": _tokenized,
}


def compat_app(service: FakeService, metrics: Metrics, api_keys: tuple[str, ...] = ()) -> Litestar:
    """Every adapter over a pretended service."""
    server = ServerConfig(max_body_bytes=MAX_BODY_BYTES)
    return build_app(service, server, api_keys, metrics, all_tasks(), service.lifespan)  # type: ignore[arg-type]


def compat_metrics() -> Metrics:
    return Metrics(models=("org/bert", "topics"), tasks=tuple(RESULTS))


def compat_client(service: FakeService, metrics: Metrics, api_keys: tuple[str, ...] = ()) -> httpx.AsyncClient:
    return connect(compat_app(service, metrics, api_keys))


@dataclass(frozen=True, slots=True)
class Compat:
    """A good request of one route; ``task``: under which it counts; ``invalid``: the status of a wrong field."""

    path: str
    task: str
    body: dict[str, Any]
    many: dict[str, Any]
    wrong: dict[str, Any]
    invalid: int = 422

    @property
    def prefix(self) -> str:
        return self.path[: self.path.index("/", 1)]


def tensor(*texts: Any, **changes: Any) -> dict[str, Any]:
    return {"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)} | changes


USER = {"messages": [{"role": "user", "content": "a"}]}
ROUTES = (
    Compat("/v1/completions", "generate", {"prompt": "a"}, {"prompt": ["a", "b"]}, {"prompt": 5}, 400),
    Compat("/v1/chat/completions", "generate", USER, USER, {"messages": 5}, 400),
    Compat("/v1/embeddings", "embed", {"input": "a"}, {"input": ["a", "b"]}, {"input": 5}, 400),
    Compat(
        "/v1/rerank",
        "rerank",
        {"query": "q", "documents": ["a"]},
        {"query": "q", "documents": ["a", "b"]},
        {"query": 5, "documents": []},
        400,
    ),
    Compat("/tei/embed", "embed", {"inputs": "a"}, {"inputs": ["a", "b"]}, {"inputs": 5}),
    Compat("/tei/predict", "classify", {"inputs": "a"}, {"inputs": [["a"], ["b"]]}, {"inputs": 5}),
    Compat(
        "/tei/rerank", "rerank", {"query": "q", "texts": ["a"]}, {"query": "q", "texts": ["a", "b"]}, {"texts": ["a"]}
    ),
    Compat(
        "/tei/similarity",
        "similarity",
        {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
        {"inputs": {"source_sentence": "a", "sentences": ["b", "c"]}},
        {"inputs": ["a"]},
    ),
    Compat("/tei/tokenize", "tokenize", {"inputs": "a"}, {"inputs": ["a", "b"]}, {"inputs": 5}),
    Compat(
        "/v2/models/topics/infer",
        "classify",
        {"inputs": [tensor("a")]},
        {"inputs": [tensor("a", "b")]},
        {"inputs": []},
        400,
    ),
)


def message_of(reply: httpx.Response) -> str:
    """What an error says, its shape checked to be that of the path's prefix."""
    assert reply.headers["content-type"] == "application/json", reply.text
    body = reply.json()
    if reply.request.url.path.startswith("/v1"):
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
        return str(body["error"]["message"])
    assert set(body) == ({"error"} if reply.request.url.path.startswith("/v2") else {"error", "error_type"})
    return str(body["error"])
