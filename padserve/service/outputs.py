"""One input that is being generated, seen from the event loop: its tokens as they come, and its end."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from padserve.core import Emitted, Generated
from padserve.errors import EngineDown, PadserveError
from padserve.generate.engine import Generation
from padserve.generate.strategy import make_search
from padserve.service.engine import Engine
from padserve.tasks.generating import (
    Ask,
    EndEvent,
    GeneratingTask,
    StreamedText,
    TokenEvent,
    TokenLogprobs,
    Work,
    logprobs_of,
)
from padserve.text.stops import WatchedText
from padserve.text.tokenizer import Tokenizer

Outcome = list[Generated] | PadserveError


class Outputs:
    """Every method is for the event loop's thread."""

    def __init__(
        self, engine: Engine, model: str, task: GeneratingTask[Any], ask: Ask, tokenizer: Tokenizer, deadline: float
    ) -> None:
        self._engine, self._model, self._task, self._ask, self._tokenizer = engine, model, task, ask, tokenizer
        self._arrived: asyncio.Queue[list[Emitted] | None] = asyncio.Queue()
        self._end: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._generation = Generation(
            ask.options.prompt,
            make_search(ask.options, lambda: WatchedText(tokenizer, ask.options.stop, ask.lead)),
            lambda emitted: engine.post(self._arrived.put_nowait, emitted),
            lambda outcome: engine.post(self._finish, outcome),
            source=ask.options.source,
            deadline=deadline,
        )

    def start(self) -> None:
        """Errors: `EngineDown`."""
        worker = self._engine.worker(self._model)
        if not worker.alive:
            raise EngineDown("the generation worker is not alive", retry_after_s=2)
        worker.submit(self._generation)

    def abort(self) -> None:
        """Give its cache back after the step that runs."""
        if not self._end.done():
            self._engine.worker(self._model).abort(self._generation)

    async def end(self) -> Outcome:
        return await self._end

    async def events(self, place: int = 0) -> AsyncIterator[TokenEvent | EndEvent]:
        """Tokens with the text that each has made certain, then the ends. Of beams there is nothing before the end.

        ``place``: of the input in its request. Errors: the `PadserveError` that it ended in.
        """
        texts: dict[int, StreamedText] = {}
        before: dict[int, list[int]] = {}  # tokens of each output so far
        while (emitted := await self._arrived.get()) is not None:
            for one in emitted:
                text = texts.setdefault(one.index, StreamedText(self._ask, self._tokenizer)).push(one)
                tokens = before.setdefault(one.index, [])
                if not tokens:
                    text = self._task.opening(self._ask, one.token_id, self._tokenizer) + text
                yield TokenEvent(one.index, text, one.token_id, self._logprobs(one, tokens), place)
                tokens.append(one.token_id)
        outcome = self._end.result()
        if isinstance(outcome, PadserveError):
            raise outcome
        for index, output in enumerate(outcome):
            rest = texts.setdefault(index, StreamedText(self._ask, self._tokenizer)).finish(output)
            if rest:
                yield TokenEvent(index, rest, input=place)
            yield EndEvent(index, output.reason, place)

    def _logprobs(self, one: Emitted, before: Sequence[int]) -> TokenLogprobs | None:
        if one.details is None:
            return None
        return logprobs_of(one.details, self._task.token_text(self._ask, before, self._tokenizer))

    def _finish(self, outcome: Outcome) -> None:
        if not self._end.done():
            self._end.set_result(outcome)
        self._arrived.put_nowait(None)


Event = TokenEvent | EndEvent


def whole(outcomes: Sequence[Outcome]) -> list[list[Generated]] | PadserveError:
    """The outputs of all parts of an input, or the first error, which is the input's."""
    outputs = []
    for outcome in outcomes:
        if isinstance(outcome, PadserveError):
            return outcome
        outputs.append(outcome)
    return outputs


async def events_in_order(streams: Sequence[Outputs], work: Work, place: int) -> AsyncGenerator[Event]:
    """The tokens of each part of an input as they come, its parts one after another, then the ends.

    ``place``: of the input in its request. Errors: the `PadserveError` that a part ended in.
    """
    ends: dict[int, EndEvent] = {}
    for stream, ask, gap in zip(streams, work.asks, work.gaps, strict=False):
        for event in _gap(gap, ask, place):
            yield event
        async for part in stream.events(place):
            if isinstance(part, EndEvent):
                ends[part.index] = part
            else:
                yield part
    for event in _gap(work.gaps[-1], work.asks[-1], place):
        yield event
    for end in ends.values():
        yield end


def _gap(text: str, ask: Ask, place: int) -> list[TokenEvent]:
    outputs = range(ask.options.num_return_sequences)
    return [TokenEvent(index, text, input=place) for index in outputs] if text else []


async def interleaved(inputs: Sequence[AsyncGenerator[Event]]) -> AsyncGenerator[Event]:
    """The events of several inputs as they come. Errors: the first `PadserveError` that one of them ends in."""
    arrived: asyncio.Queue[Event | Exception | None] = asyncio.Queue()

    async def forward(events: AsyncGenerator[Event]) -> None:
        try:
            async for event in events:
                arrived.put_nowait(event)
        except Exception as error:
            arrived.put_nowait(error)
        else:
            arrived.put_nowait(None)

    running = len(inputs)
    forwards = [asyncio.create_task(forward(events)) for events in inputs]
    try:
        while running:
            event = await arrived.get()
            if isinstance(event, Exception):
                raise event
            if event is None:
                running -= 1
            else:
                yield event
    finally:
        for task in forwards:
            task.cancel()
