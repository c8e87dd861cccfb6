"""Requests wait while a batch runs; then all that wait, up to a bound, are the next batch."""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any

Body = dict[str, Any]
Run = Callable[[list[Body]], list[Body]]
Waiting = tuple[Body, "asyncio.Future[Body]"]


class Batcher:
    """``run`` is called on a thread of its own, with ``most`` bodies at most, and answers each of them in order.

    ``workers``: how many such threads.
    """

    def __init__(self, run: Run, most: int = 32, workers: int = 1) -> None:
        self.run, self.most = run, most
        self.waiting: queue.SimpleQueue[Waiting] = queue.SimpleQueue()
        for _ in range(workers):
            threading.Thread(target=self._work, daemon=True).start()

    async def __call__(self, body: Body) -> Body:
        future: asyncio.Future[Body] = asyncio.get_running_loop().create_future()
        self.waiting.put((body, future))
        return await future

    def _work(self) -> None:
        while True:
            batch = self._taken()
            found: list[Body] | Exception
            try:
                found = self.run([body for body, _ in batch])
            except Exception as error:
                found = error
            futures = [future for _, future in batch]
            futures[0].get_loop().call_soon_threadsafe(deliver, futures, found)

    def _taken(self) -> list[Waiting]:
        """Waits for one, and takes with it those that wait too."""
        batch = [self.waiting.get()]
        while len(batch) < self.most:
            try:
                batch.append(self.waiting.get_nowait())
            except queue.Empty:
                break
        return batch


def deliver(futures: "list[asyncio.Future[Body]]", found: list[Body] | Exception) -> None:
    for at, future in enumerate(futures):
        if future.done():
            continue
        if isinstance(found, Exception):
            future.set_exception(found)
        else:
            future.set_result(found[at])
