"""Groups of rows in, their answers out in the same order, a bounded number in between.

    groups -> _feed: wait for room, start -> run (many at once) -> _write_all: in order -> write

What has been started and not yet written is bounded in bytes, so memory is, and the device always has work waiting.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, ParamSpec, TypeVar

from padserve.cli.rows import Group

P = ParamSpec("P")
T = TypeVar("T")
AnswerT = TypeVar("AnswerT")
Call = tuple[asyncio.Future[Any], Callable[[], Any]]


class Aside:
    """A thread for calls that may block for ever, as on a pipe. The process can end while it waits."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name=f"padserve-{name}", daemon=True).start()

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call in the thread, one call after the other. A caller that is cancelled does not wait for it."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put((future, lambda: function(*args, **kwargs)))
        return await future

    def close(self) -> None:
        """Let the thread end after what it has been given."""
        self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            result, error = None, None
            try:
                result = function()
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                future.get_loop().call_soon_threadsafe(_settle, future, result, error)


def _settle(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class Flow(Generic[AnswerT]):
    """``max_bytes``: what may be under way, as ``cost`` counts it; one group always may."""

    def __init__(
        self,
        run: Callable[[Group], Awaitable[AnswerT]],
        write: Callable[[Group, AnswerT], Awaitable[None]],
        cost: Callable[[Group], int],
        max_bytes: int,
    ) -> None:
        self._run, self._write, self._cost, self._max_bytes = run, write, cost, max_bytes
        self._started: asyncio.Queue[tuple[Group, asyncio.Task[AnswerT]] | None] = asyncio.Queue()
        self._running: set[asyncio.Task[AnswerT]] = set()
        self._feeder: asyncio.Task[None] | None = None
        self._bytes = 0
        self._written = asyncio.Event()
        self.stopped = False

    async def process(self, groups: AsyncIterator[Group]) -> None:
        """Run every group. When reading fails, what was read is written first, then the error is raised."""
        self._feeder = asyncio.create_task(self._feed(groups))
        try:
            await self._write_all()
            if not self.stopped:
                await self._feeder
        finally:
            self.stop()
            await asyncio.gather(self._feeder, *self._running, return_exceptions=True)

    def stop(self) -> None:
        """Start nothing more and drop what runs; `process` returns when what is done has been written."""
        self.stopped = True
        for task in (self._feeder, *self._running):
            if task is not None:
                task.cancel()
        self._started.put_nowait(None)

    async def _feed(self, groups: AsyncIterator[Group]) -> None:
        try:
            async for group in groups:
                await self._room(self._cost(group))
                task = asyncio.ensure_future(self._run(group))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
                self._started.put_nowait((group, task))
        finally:
            self._started.put_nowait(None)

    async def _room(self, cost: int) -> None:
        while self._bytes and self._bytes + cost > self._max_bytes:
            self._written.clear()
            await self._written.wait()
        self._bytes += cost

    async def _write_all(self) -> None:
        while (head := await self._started.get()) is not None:
            group, task = head
            await asyncio.wait([task])
            if task.cancelled():
                return
            await self._write(group, task.result())
            self._bytes -= self._cost(group)
            self._written.set()
