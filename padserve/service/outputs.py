"""One input that is being generated, seen from the event loop: its tokens as they come, and its end."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from padserve.core import Emitted, Generated
from padserve.errors import EngineDown, PadserveError
from padserve.generate.engine import Generation
from padserve.generate.strategy import make_search
from padserve.service.engine import Engine
from padserve.tasks.generating import Ask, StreamedText, TokenEvent, Work, logprobs_of
from padserve.text.tokenizer import Tokenizer

Outcome = list[Generated] | PadserveError


class Outputs:
    """Every method is for the event loop's thread."""

    def __init__(self, engine: Engine, model: str, ask: Ask, tokenizer: Tokenizer, deadline: float) -> None:
        self._engine, self._model, self._ask, self._tokenizer = engine, model, ask, tokenizer
        self._arrived: asyncio.Queue[list[Emitted] | None] = asyncio.Queue()
        self._end: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._generation = Generation(
            ask.options.prompt,
            make_search(ask.options, self._decode),
            lambda emitted: engine.post(self._arrived.put_nowait, emitted),
            lambda outcome: engine.post(self._finish, outcome),
            source=ask.options.source,
            deadline=deadline,
        )

    def _decode(self, tokens: object) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True)  # type: ignore[arg-type]

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

    async def events(self) -> AsyncIterator[TokenEvent]:
        """Tokens with the text that each has made certain. Of beams there is nothing before the end."""
        texts: dict[int, StreamedText] = {}
        while (emitted := await self._arrived.get()) is not None:
            for one in emitted:
                text = texts.setdefault(one.index, StreamedText(self._ask, self._tokenizer)).push(one)
                details = None if one.details is None else logprobs_of(one.details, self._tokenizer)
                yield TokenEvent(one.index, text, one.token_id, details)
        outcome = self._end.result()
        if isinstance(outcome, PadserveError):
            return
        for index, output in enumerate(outcome):
            rest = texts.setdefault(index, StreamedText(self._ask, self._tokenizer)).finish(output)
            if rest:
                yield TokenEvent(index, rest)

    def _finish(self, outcome: Outcome) -> None:
        if not self._end.done():
            self._end.set_result(outcome)
        self._arrived.put_nowait(None)


def whole(outcomes: Sequence[Outcome]) -> list[list[Generated]] | PadserveError:
    """The outputs of all parts of an input, or the first error, which is the input's."""
    outputs = []
    for outcome in outcomes:
        if isinstance(outcome, PadserveError):
            return outcome
        outputs.append(outcome)
    return outputs


async def events_in_order(streams: Sequence[Outputs], work: Work) -> AsyncIterator[TokenEvent]:
    """The tokens of each part of an input as they come, its parts one after another; up to the first error."""
    for stream, ask, gap in zip(streams, work.asks, work.gaps, strict=False):
        for event in _gap(gap, ask):
            yield event
        async for event in stream.events():
            yield event
        if isinstance(await stream.end(), PadserveError):
            return
    for event in _gap(work.gaps[-1], work.asks[-1]):
        yield event


def _gap(text: str, ask: Ask) -> list[TokenEvent]:
    return [TokenEvent(index, text) for index in range(ask.options.num_return_sequences)] if text else []
