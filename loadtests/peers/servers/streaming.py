"""The web side of the small servers that generate: all tokens at the end, or each as an event when it comes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from loadtests.peers.servers.web import with_health

Body = dict[str, Any]
# Called on the event loop for each token, and with None after the last.
Push = Callable[[int | None], None]
Start = Callable[[Body, Push], None]


def streaming(task: str, start: Start, decode: Callable[[int], str]) -> FastAPI:
    """``start`` begins to answer a body and returns at once. ``decode``: the text of a token."""
    app = with_health()

    async def tokens(body: Body) -> AsyncIterator[int]:
        arrived: asyncio.Queue[int | None] = asyncio.Queue()
        start(body, arrived.put_nowait)
        while (token := await arrived.get()) is not None:
            yield token

    async def events(body: Body) -> AsyncIterator[bytes]:
        async for token in tokens(body):
            yield b"data: " + orjson.dumps({"token": token, "text": decode(token)}) + b"\n\n"

    @app.post(f"/{task}")
    async def ask(request: Request) -> Response:
        body = orjson.loads(await request.body())
        if body.get("stream"):
            return StreamingResponse(events(body), media_type="text/event-stream")
        found = [token async for token in tokens(body)]
        return Response(orjson.dumps({"tokens": found}), media_type="application/json")

    return app
