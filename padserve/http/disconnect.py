"""A client that leaves takes its work with it."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from litestar.types import Receive

from padserve.errors import ClientClosed

ResultT = TypeVar("ResultT")


async def while_connected(work: Awaitable[ResultT], receive: Receive) -> ResultT:
    """Await ``work``; cancel it when the client disconnects. The request's body must have been read.

    Errors: `ClientClosed` if the client left.
    """
    handler = asyncio.current_task()
    if handler is None:
        raise RuntimeError("while_connected() must run in a task")
    left = False

    async def watch() -> None:
        nonlocal left
        while (await receive())["type"] != "http.disconnect":
            pass
        left = True
        handler.cancel()

    watcher = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if not left or handler.uncancel() > 0:
            raise
        raise ClientClosed("the client closed the connection before its reply was ready") from None
    finally:
        watcher.cancel()
