"""The facade between HTTP and everything that computes.

    run: select a model -> plan (tokenizer thread) -> admit by tokens -> queue -> await -> finish (tokenizer thread)

Every accepted request ends in exactly one of: a reply, an error, a cancellation.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any

from padserve.batching.entry import Entry, Ticket
from padserve.core import Generated, ModelSpec, Output, Timings, Usage
from padserve.errors import (
    DeadlineExceeded,
    Draining,
    EmptyInputs,
    EngineDown,
    PadserveError,
    QueueFull,
    Starting,
    TooManyTokens,
)
from padserve.service.catalog import select
from padserve.service.deadline import deadline_of
from padserve.service.engine import Engine
from padserve.service.outputs import Outputs, events_in_order, interleaved, whole
from padserve.service.readiness import Readiness
from padserve.tasks.base import Finished, ItemError, Plan, Result, Task, TaskRequest, Unit
from padserve.tasks.generating import EndEvent, GeneratingRequest, GeneratingTask, TokenEvent, Work
from padserve.telemetry.metrics import Metrics
from padserve.text.pool import TokenizerPool

UnitOutputs = Sequence[Output] | PadserveError


@dataclass(slots=True)
class RequestContext:
    """What HTTP knows of a request. ``received_at``: `time.perf_counter` seconds; ``timeout_ms``: from the header."""

    request_id: str
    received_at: float
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    model: str
    results: list[Result | ItemError]
    usage: Usage
    timings: Timings


class Service:
    """``max_queue_tokens``: what may wait at once, all models together."""

    def __init__(self, engine: Engine, tokenizers: TokenizerPool, metrics: Metrics, max_queue_tokens: int) -> None:
        self._engine, self._tokenizers, self._metrics = engine, tokenizers, metrics
        self._max_queue_tokens = max_queue_tokens
        self._draining = False
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self, task: Task[Any], request: TaskRequest, context: RequestContext) -> Reply:
        """Serve one request. Cancelling the caller drops its queued work. Errors: `PadserveError`."""
        self._check_open()
        spec = select(self._engine.specs(), task.name, request.model, self._engine.names)
        self._in_flight += 1
        self._idle.clear()
        try:
            deadline = deadline_of(request, context.received_at, context.timeout_ms)
            async with asyncio.timeout_at(_loop_time(deadline)):
                return await self._run(task, request, spec, deadline)
        except TimeoutError as error:
            self._metrics.rejected("deadline_exceeded")
            raise DeadlineExceeded("the request's own deadline passed before its result was ready") from error
        except asyncio.CancelledError:
            self._metrics.cancelled(spec.name)
            raise
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                self._idle.set()

    def _check_open(self) -> None:
        if self._draining:
            self._metrics.rejected("draining")
            raise Draining("the server is shutting down; send the request to another replica")
        if not self._engine.started:
            self._metrics.rejected("starting")
            raise Starting("models are still loading; see /startupz", retry_after_s=2)

    async def _run(self, task: Task[Any], request: TaskRequest, spec: ModelSpec, deadline: float) -> Reply:
        self._refuse_when_full(0)
        timings = Timings()
        plan = await self._plan(task, request, spec, timings)
        if isinstance(task, GeneratingTask) and isinstance(request, GeneratingRequest):
            return await self._generate(task, request, spec, plan, deadline, timings)
        outputs = await self._compute(spec, request, plan, deadline, timings)
        finished = await self._finish(task, request, spec, plan, outputs, timings)
        ran = _tokens_run(plan, outputs)
        self._metrics.tokens_in(spec.name, ran)
        usage = Usage(input_tokens=ran or _tokens_told(finished))
        return Reply(spec.name, _entries(finished), usage, timings)

    async def _plan(self, task: Task[Any], request: TaskRequest, spec: ModelSpec, timings: Timings) -> Plan:
        started = time.perf_counter()
        tokenizer = self._engine.tokenizer(spec.name)
        plan = await self._tokenizers.run(task.plan, request, spec, tokenizer)
        timings.tokenize_s = time.perf_counter() - started
        self._metrics.tokenized(spec.name, timings.tokenize_s)
        if not plan.units:
            raise EmptyInputs("the list of inputs is empty; give at least one")
        return plan

    async def _generate(
        self,
        task: GeneratingTask[Any],
        request: GeneratingRequest,
        spec: ModelSpec,
        plan: Plan,
        deadline: float,
        timings: Timings,
    ) -> Reply:
        tokenizer = self._engine.tokenizer(spec.name)
        asks = [ask for unit in plan.units if isinstance(unit, Unit) for ask in unit.state.asks]
        self._refuse_when_full(sum(ask.input_tokens for ask in asks))
        streams = [Outputs(self._engine, spec.name, task, ask, tokenizer, deadline) for ask in asks]
        try:
            for stream in streams:
                stream.start()
            generated = iter([await stream.end() for stream in streams])
        except BaseException:
            for stream in streams:
                stream.abort()
            raise
        results: list[Result | PadserveError] = []
        output_tokens = 0
        for unit in plan.units:
            if isinstance(unit, PadserveError):
                results.append(unit)
                continue
            outcomes = whole([next(generated) for _ in unit.state.asks])
            if isinstance(outcomes, PadserveError):
                results.append(outcomes)
                continue
            output_tokens += _tokens_of(outcomes)
            results.append(await self._tokenizers.run(task.result, request, unit.state, outcomes, tokenizer))
        finished = Finished(results, isinstance(request.inputs, list))
        usage = Usage(sum(ask.input_tokens for ask in asks), output_tokens)
        self._metrics.tokens_in(spec.name, usage.input_tokens)
        self._metrics.tokens_out(spec.name, output_tokens)
        return Reply(spec.name, _entries(finished), usage, timings)

    async def stream(
        self, task: GeneratingTask[Any], request: GeneratingRequest, context: RequestContext
    ) -> AsyncIterator[TokenEvent | EndEvent | Reply]:
        """Serve a request, tokens as they come and the whole reply last. Closing the iterator ends the work.

        An input that fails ends the others.

        Errors: `PadserveError`, before the first event or in place of one.
        """
        self._check_open()
        spec = select(self._engine.specs(), task.name, request.model, self._engine.names)
        self._in_flight += 1
        self._idle.clear()
        streams: list[Outputs] = []
        try:
            deadline = deadline_of(request, context.received_at, context.timeout_ms)
            self._refuse_when_full(0)
            timings = Timings()
            plan = await self._plan(task, request, spec, timings)
            works, tokenizer = _works(plan), self._engine.tokenizer(spec.name)
            input_tokens = sum(ask.input_tokens for work in works for ask in work.asks)
            self._refuse_when_full(input_tokens)
            parts = [
                [Outputs(self._engine, spec.name, task, ask, tokenizer, deadline) for ask in work.asks]
                for work in works
            ]
            streams += [stream for own in parts for stream in own]
            for stream in streams:
                stream.start()
            inputs = [
                events_in_order(own, work, place) for place, (own, work) in enumerate(zip(parts, works, strict=True))
            ]
            async with aclosing(interleaved(inputs)) as events:
                async for event in events:
                    yield event
            results: list[Result | ItemError] = []
            output_tokens = 0
            for own, work in zip(parts, works, strict=True):
                outcomes = whole([await stream.end() for stream in own])
                if isinstance(outcomes, PadserveError):
                    raise outcomes
                output_tokens += _tokens_of(outcomes)
                results.append(await self._tokenizers.run(task.result, request, work, outcomes, tokenizer))
            self._metrics.tokens_in(spec.name, input_tokens)
            self._metrics.tokens_out(spec.name, output_tokens)
            yield Reply(spec.name, results, Usage(input_tokens, output_tokens), timings)
        finally:
            for stream in streams:
                stream.abort()
            self._in_flight -= 1
            if self._in_flight == 0:
                self._idle.set()

    async def _compute(
        self, spec: ModelSpec, request: TaskRequest, plan: Plan, deadline: float, timings: Timings
    ) -> list[UnitOutputs]:
        """Queue what the plan holds and wait for it: outputs, or the error, of each unit."""
        encodings = [encoding for unit in plan.units if isinstance(unit, Unit) for encoding in unit.encodings]
        if not encodings:
            return [[] if isinstance(unit, Unit) else unit for unit in plan.units]
        self._refuse_when_full(sum(len(encoding) for encoding in encodings))
        ticket = Ticket(len(encodings), asyncio.get_running_loop().create_future())
        now = time.perf_counter()
        entries = [
            Entry(spec.name, encoding, ticket, index, now, request.priority, deadline)
            for index, encoding in enumerate(encodings)
        ]
        await self._ride(entries, ticket)
        measured = ticket.timings
        timings.queue_s, timings.run_s = measured.queue_s, measured.run_s
        timings.batch_tokens, timings.batch_size = measured.batch_tokens, measured.batch_size
        return _by_unit(plan, ticket)

    async def _ride(self, entries: list[Entry], ticket: Ticket) -> None:
        if not self._engine.alive:
            raise EngineDown("no device worker is alive; they are being restarted", retry_after_s=2)
        self._engine.queue.put(entries)
        try:
            await ticket.done
        except BaseException:
            ticket.abandon()
            self._engine.queue.discard(entries)
            raise

    def _refuse_when_full(self, tokens: int) -> None:
        """Errors: `TooManyTokens` for what can never fit, `QueueFull` for what does not fit now."""
        if tokens > self._max_queue_tokens:
            self._metrics.rejected("too_many_tokens")
            raise TooManyTokens(
                f"the request has {tokens} tokens, the queue holds {self._max_queue_tokens}; send fewer inputs at once",
                tokens=tokens,
                max_queue_tokens=self._max_queue_tokens,
            )
        waiting = self._engine.queue.waiting_tokens
        if waiting + max(tokens, 1) <= self._max_queue_tokens:
            return
        self._metrics.rejected("queue_full")
        retry_after_s = min(max(math.ceil(self._engine.seconds_to_clear()), 1), 60)
        raise QueueFull(
            f"{waiting} of {self._max_queue_tokens} tokens wait already; try again in about {retry_after_s} s",
            retry_after_s,
            waiting_tokens=waiting,
            max_queue_tokens=self._max_queue_tokens,
        )

    async def _finish(
        self,
        task: Task[Any],
        request: TaskRequest,
        spec: ModelSpec,
        plan: Plan,
        outputs: list[UnitOutputs],
        timings: Timings,
    ) -> Finished:
        started = time.perf_counter()
        finished = await self._tokenizers.run(task.finish, request, spec, plan, outputs)
        timings.post_s = time.perf_counter() - started
        self._metrics.postprocessed(spec.name, timings.post_s)
        return finished

    def specs(self) -> list[ModelSpec]:
        return self._engine.specs()

    def model_status(self, name: str) -> dict[str, Any]:
        """A model's facts and live counters. Errors: `UnknownModel`."""
        spec = self._engine.spec_named(name)
        languages = [] if spec.generation is None else list(spec.generation.languages)
        return {**asdict(spec), "tasks": list(spec.tasks), "languages": languages, **self._engine.live(name)}

    def readiness(self) -> Readiness:
        reasons = self._engine.complaints()
        if self._draining:
            reasons.insert(0, "the server is draining")
        return Readiness(ready=not reasons, started=self._engine.started, reasons=reasons)

    def start_draining(self) -> None:
        """Refuse new work; what was accepted goes on."""
        self._draining = True

    async def drained(self) -> None:
        """Wait until nothing accepted is left."""
        await self._idle.wait()


def _loop_time(deadline: float) -> float | None:
    if deadline == float("inf"):
        return None
    return asyncio.get_running_loop().time() + (deadline - time.perf_counter())


def _works(plan: Plan) -> list[Work]:
    """What a plan of a generating task asks for. Errors: that of its first unit that cannot run."""
    for place, unit in enumerate(plan.units):
        if isinstance(unit, PadserveError):
            if len(plan.units) > 1:
                unit.message = f"input {place}: {unit.message}"
            raise unit
    return [unit.state for unit in plan.units if isinstance(unit, Unit)]


def _by_unit(plan: Plan, ticket: Ticket) -> list[UnitOutputs]:
    """Give each unit its outcomes; one error of a unit's sequences is the unit's."""
    outcomes = iter(ticket.outcomes)
    grouped: list[UnitOutputs] = []
    for unit in plan.units:
        if isinstance(unit, PadserveError):
            grouped.append(unit)
            continue
        own = [next(outcomes) for _ in unit.encodings]
        failed = next((outcome for outcome in own if isinstance(outcome, PadserveError)), None)
        grouped.append(failed or [outcome for outcome in own if not isinstance(outcome, PadserveError | None)])
    return grouped


def _tokens_run(plan: Plan, outputs: list[UnitOutputs]) -> int:
    return sum(
        sum(len(encoding) for encoding in unit.encodings)
        for unit, output in zip(plan.units, outputs, strict=True)
        if isinstance(unit, Unit) and not isinstance(output, PadserveError)
    )


def _tokens_of(outcomes: Sequence[Sequence[Generated]]) -> int:
    return sum(len(output.tokens) for outputs in outcomes for output in outputs)


def _tokens_told(finished: Finished) -> int:
    return sum(result.input_tokens for result in finished.results if not isinstance(result, PadserveError))


def _entries(finished: Finished) -> list[Result | ItemError]:
    """Results with errors in their places; when nothing succeeded, the first error is the request's."""
    errors = [result for result in finished.results if isinstance(result, PadserveError)]
    if errors and (not finished.many or len(errors) == len(finished.results)):
        raise errors[0]
    return [ItemError.of(result) if isinstance(result, PadserveError) else result for result in finished.results]
