"""A service over models that only pretend, with a gate that holds their worker."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np
import pytest

from padserve.batching.placement import Placement
from padserve.batching.workers import Supervision
from padserve.config.structs import ModelConfig
from padserve.core import Batch, Encoding, ModelSpec, Output
from padserve.errors import InvalidField, PadserveError
from padserve.models.loaded import LoadedModel
from padserve.service.engine import Engine
from padserve.service.service import Reply, RequestContext, Service
from padserve.tasks.base import Finished, Plan, Task, TaskRequest, TaskResult, Unit
from padserve.telemetry.metrics import Metrics
from padserve.text.pool import TokenizerPool

PATIENCE_S = 5.0


class EchoRequest(TaskRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    inputs: str | list[str]


class EchoResult(TaskResult, frozen=True, kw_only=True):
    text: str
    total: float


class Echo(Task[EchoRequest]):
    """One token a character; the model answers with the sum of them. ``?`` cannot be encoded."""

    name = "echo"
    summary = "Sum of characters"
    heads = frozenset({"embedding"})
    request_type = EchoRequest
    result_type = EchoResult

    def plan(self, request: EchoRequest, spec: ModelSpec, tokenizer: Any) -> Plan:
        texts = request.inputs if isinstance(request.inputs, list) else [request.inputs]
        return Plan([self._unit(text) for text in texts])

    def _unit(self, text: str) -> Unit | PadserveError:
        if "?" in text:
            return InvalidField("? is no input")
        return Unit((Encoding(np.array([ord(letter) for letter in text], dtype=np.int64)),), text)

    def finish(
        self,
        request: EchoRequest,
        spec: ModelSpec,
        plan: Plan,
        outputs: Sequence[Sequence[Output] | PadserveError],
    ) -> Finished:
        results: list[Any] = []
        for unit, output in zip(plan.units, outputs, strict=True):
            if isinstance(output, PadserveError) or isinstance(unit, PadserveError):
                results.append(output)
                continue
            total = float(output[0][0])
            results.append(EchoResult(text=unit.state, total=total, tokens=len(unit.state), truncated=False))
        return Finished(results, isinstance(request.inputs, list))


class Death(BaseException):
    """What no ``except Exception`` catches."""


class EchoModel:
    """Sums ids. ``!`` in a text makes the batch raise, ``%`` gives NaN, ``$`` kills the worker."""

    kind = "echo"

    def __init__(self, seconds_a_token: float = 0.0) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.ran: list[str] = []
        self.seconds_a_token = seconds_a_token

    def run(self, batch: Batch) -> list[Output]:
        self.entered.release()
        assert self.gate.wait(PATIENCE_S), "the gate was never opened"
        time.sleep(self.seconds_a_token * batch.total_tokens)
        texts = [
            "".join(map(chr, batch.input_ids[start:stop]))
            for start, stop in zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False)
        ]
        if any("$" in text for text in texts):
            raise Death
        if any("!" in text for text in texts):
            raise RuntimeError("boom")
        self.ran += texts
        return [np.array([np.nan if "%" in text else total(text)], dtype=np.float32) for text in texts]


def total(text: str) -> float:
    return float(sum(map(ord, text)))


def loaded(name: str, runner: EchoModel, tasks: tuple[str, ...], max_batch_tokens: int) -> LoadedModel:
    spec = ModelSpec(
        name=name,
        source=name,
        head="embedding",
        tasks=tasks,
        architecture="EchoModel",
        family="echo",
        dtype="float32",
        device="cpu",
        batching="packed",
        max_length=64,
        max_batch_tokens=max_batch_tokens,
        vocab_size=2,
    )
    return LoadedModel(spec, None, runner, 0.0, "it only pretends")  # type: ignore[arg-type]


class Stage:
    """A service and what it is made of."""

    def __init__(
        self,
        names: tuple[str, ...] = ("m",),
        max_queue_tokens: int = 1000,
        max_batch_tokens: int = 64,
        workers: int = 1,
        seconds_a_token: float = 0.0,
        supervision: Supervision | None = None,
    ) -> None:
        self.echo = Echo()
        self.models = {name: EchoModel(seconds_a_token) for name in names}
        self.metrics = Metrics(names, ["echo"])
        self.fatal: list[BaseException] = []
        self.loading = threading.Event()
        self.loading.set()
        configs = [ModelConfig(name=name, source=name) for name in names]
        self.engine = Engine(
            configs,
            lambda config: self.load(config.name, max_batch_tokens),
            Placement(workers, 1, 1.0, "set"),
            self.metrics,
            self.fatal.append,
            supervision or Supervision(restart_delay_s=0.1),
        )
        self.tokenizers = TokenizerPool(2)
        self.service = Service(self.engine, self.tokenizers, self.metrics, max_queue_tokens)

    def load(self, name: str, max_batch_tokens: int) -> LoadedModel:
        assert self.loading.wait(PATIENCE_S)
        return loaded(name, self.models[name], ("echo",), max_batch_tokens)

    @property
    def model(self) -> EchoModel:
        return next(iter(self.models.values()))

    @property
    def waiting_tokens(self) -> int:
        return self.engine.queue.waiting_tokens

    def forget_warm_up(self) -> None:
        for model in self.models.values():
            model.ran.clear()
            while model.entered.acquire(blocking=False):
                pass

    async def run(self, inputs: str | list[str], header_ms: int | None = None, **fields: Any) -> Reply:
        context = RequestContext("id", time.perf_counter(), header_ms)
        return await self.service.run(self.echo, EchoRequest(inputs=inputs, **fields), context)

    async def hold(self, text: str = "held") -> "asyncio.Task[Reply]":
        """Close the gate and occupy the worker with a request of its own."""
        self.model.gate.clear()
        held = asyncio.create_task(self.run(text))
        assert await asyncio.to_thread(self.model.entered.acquire, timeout=PATIENCE_S)
        return held

    async def queued(self, tokens: int) -> None:
        await eventually(lambda: self.waiting_tokens == tokens)


async def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.002)


@pytest.fixture
def stage() -> Callable[..., contextlib.AbstractAsyncContextManager[Stage]]:
    """``async with stage(**options) as s``: a started service, stopped at the end."""

    @contextlib.asynccontextmanager
    async def started(**options: Any) -> AsyncIterator[Stage]:
        made = Stage(**options)
        await made.engine.start()
        made.forget_warm_up()
        try:
            yield made
        finally:
            for model in made.models.values():
                model.gate.set()
            await asyncio.to_thread(made.engine.stop, PATIENCE_S)
            made.tokenizers.close()
            assert made.waiting_tokens == 0

    return started


@pytest.fixture
def unstarted() -> Callable[..., Stage]:
    return Stage


@pytest.fixture(scope="session")
def wait_for() -> Callable[[Callable[[], bool]], Any]:
    return eventually


@pytest.fixture(scope="session")
def sum_of() -> Callable[[str], float]:
    return total
