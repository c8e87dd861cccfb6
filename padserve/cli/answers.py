"""Asks the service for the results of rows. Whatever happens to a row, it gets exactly one outcome."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from padserve.cli.rows import Group, Item, together
from padserve.errors import EngineDown, InternalError, PadserveError, Unavailable
from padserve.service.service import Reply, RequestContext, Service
from padserve.tasks.base import ItemError, ItemProblem, Result, Task, TaskRequest

logger = logging.getLogger(__name__)
ATTEMPTS = 3
"""For a row whose worker died: it may be that row's doing."""
Outcome = dict[str, Any]
"""``result``, ``results`` or ``error``: what the output says of a row."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One outcome a row, and the tokens run for all of them."""

    outcomes: list[Outcome]
    tokens: int

    @property
    def errors(self) -> int:
        return sum("error" in outcome for outcome in self.outcomes)


class Answers:
    """Rows of a group share one request; those that it does not serve are asked for one by one."""

    def __init__(self, service: Service, task: Task[Any]) -> None:
        self._service, self._task = service, task

    async def of(self, group: Group) -> Answer:
        good = [item for item in group.items if isinstance(item.request, TaskRequest)]
        served = dict(zip((item.index for item in good), await self._served(good), strict=True))
        outcomes = [
            failed(item.request) if isinstance(item.request, PadserveError) else served[item.index][0]
            for item in group.items
        ]
        return Answer(outcomes, sum(tokens for _, tokens in served.values()))

    async def _served(self, items: Sequence[Item]) -> list[tuple[Outcome, int]]:
        """Outcome and tokens of each."""
        results = await self._at_once(items) if len(items) > 1 else [None] * len(items)
        return await asyncio.gather(*map(self._outcome, items, results))

    async def _at_once(self, items: Sequence[Item]) -> Sequence[Result | ItemError | None]:
        """The results of one request for all; None for those that must be tried alone."""
        try:
            reply = await self._ask(together([_request(item) for item in items]))
        except Exception:  # of which row, and whether of each, is seen when they are alone
            return [None] * len(items)
        return [None if _to_repeat(result) else result for result in reply.results]

    async def _outcome(self, item: Item, result: Result | ItemError | None) -> tuple[Outcome, int]:
        if result is None:
            return await self._alone(item)
        if isinstance(result, ItemError):
            return {"error": result.error}, 0
        return {"result": result}, result.input_tokens

    async def _alone(self, item: Item) -> tuple[Outcome, int]:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                reply = await self._ask(_request(item))
            except Unavailable as error:
                if attempt == ATTEMPTS:
                    return failed(error), 0
                await asyncio.sleep(error.retry_after_s)
            except PadserveError as error:
                return failed(error), 0
            except Exception:
                logger.exception("row %d: unexpected error", item.index)
                return failed(InternalError("unexpected error; see the log")), 0
            else:
                results = {"results": reply.results} if item.many else {"result": reply.results[0]}
                return results, reply.usage.input_tokens
        raise AssertionError("the last attempt returns")

    async def _ask(self, request: TaskRequest) -> Reply:
        return await self._service.run(self._task, request, RequestContext("", time.perf_counter()))


def failed(error: PadserveError) -> Outcome:
    return {"error": ItemProblem(error.code, error.message)}


def _request(item: Item) -> TaskRequest:
    assert isinstance(item.request, TaskRequest)
    return item.request


def _to_repeat(result: Result | ItemError) -> bool:
    return isinstance(result, ItemError) and result.error.code == EngineDown.code
