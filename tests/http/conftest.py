"""The HTTP layer over a service that only pretends: what it answers, or raises, is set by the test."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Annotated, Any, Literal

import httpx
import msgspec
import pytest
import pytest_asyncio
from litestar import Litestar

from padserve.config.structs import ServerConfig
from padserve.core import ModelSpec, Timings, Usage
from padserve.errors import UnknownModel
from padserve.http.build import build_app
from padserve.service.readiness import Readiness
from padserve.service.service import Reply, RequestContext
from padserve.tasks.base import Task, TaskRequest, TaskResult
from padserve.telemetry.metrics import Metrics

MAX_BODY_BYTES = 4096


class Pair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str
    text_pair: str | None = None


class EchoRequest(TaskRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    inputs: str | Pair | list[str | Pair]
    top_k: Annotated[int, msgspec.Meta(ge=1, le=100)] = 5
    mode: Literal["plain", "loud"] | None = None


class EchoResult(TaskResult, frozen=True, kw_only=True):
    text: str
    score: float


class EchoTask(Task[EchoRequest]):
    name = "echo"
    summary = "Give the input back"
    heads = frozenset({"embedding"})
    request_type = EchoRequest
    result_type = EchoResult


SPEC = ModelSpec(
    name="tiny",
    source="starter:tiny",
    head="embedding",
    tasks=("echo",),
    architecture="BertModel",
    family="bert",
    dtype="float32",
    device="cpu",
    batching="packed",
    max_length=16,
    max_batch_tokens=64,
    vocab_size=100,
    default=True,
)


class FakeService:
    """Answers ``outcome`` (an error is raised) after ``wait``, if that is set."""

    def __init__(self) -> None:
        self.outcome: BaseException | None = None
        self.usage = Usage(input_tokens=7)
        self.state = Readiness(ready=True, started=True)
        self.wait: asyncio.Event | None = None
        self.started = asyncio.Event()
        self.running = self.peak = self.cancelled = 0
        self.alive = False
        self.requests: list[Any] = []
        self.contexts: list[RequestContext] = []

    async def run(self, task: Task[Any], request: EchoRequest, context: RequestContext) -> Reply:
        self.requests.append(request)
        self.contexts.append(context)
        self.running += 1
        self.peak = max(self.peak, self.running)
        self.started.set()
        try:
            await (self.wait.wait() if self.wait else asyncio.sleep(0))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        if self.outcome is not None:
            raise self.outcome
        inputs = request.inputs if isinstance(request.inputs, list) else [request.inputs]
        results = [EchoResult(text=str(text), score=0.5, tokens=3, truncated=False) for text in inputs]
        timings = Timings(0.001, 0.002, 0.0305, 0.004, batch_tokens=12, batch_size=4)
        return Reply("tiny", list(results), self.usage, timings)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Litestar) -> AsyncIterator[None]:
        self.alive = True
        yield
        self.alive = False

    def specs(self) -> list[ModelSpec]:
        return [SPEC]

    def model_status(self, name: str) -> dict[str, Any]:
        if name != "tiny":
            raise UnknownModel(f"no model is called {name!r}; the models are 'tiny'", models=["tiny"])
        return {**asdict(SPEC), "queue_depth": 0}

    def readiness(self) -> Readiness:
        return self.state


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(models=("tiny",), tasks=("echo",))


@pytest.fixture
def make_app(service: FakeService, metrics: Metrics) -> Callable[..., Litestar]:
    def make(api_keys: tuple[str, ...] = ()) -> Litestar:
        server = ServerConfig(max_body_bytes=MAX_BODY_BYTES)
        return build_app(service, server, api_keys, metrics, (EchoTask(),), service.lifespan)  # type: ignore[arg-type]

    return make


def connect(app: Litestar) -> httpx.AsyncClient:
    """A client on the same event loop, so that requests really run at once. Lifespans are tested by themselves."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url="http://padserve")


@pytest_asyncio.fixture
async def client(make_app: Callable[..., Litestar]) -> AsyncIterator[httpx.AsyncClient]:
    async with connect(make_app()) as client:
        yield client


@pytest_asyncio.fixture
async def keyed(make_app: Callable[..., Litestar]) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server with two API keys, itself without one."""
    async with connect(make_app(("first-key", "sécond"))) as client:
        yield client
