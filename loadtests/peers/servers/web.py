"""The web side of the small servers: one route for the task, and ``/health``."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import uvicorn
from fastapi import FastAPI, Request, Response

Body = dict[str, Any]


def asynchronous(task: str, answer: Callable[[Body], Awaitable[Body]]) -> FastAPI:
    """A server of ``answer`` that spends little on JSON."""
    app = with_health()

    @app.post(f"/{task}")
    async def ask(request: Request) -> Response:
        found = await answer(orjson.loads(await request.body()))
        return Response(orjson.dumps(found), media_type="application/json")

    return app


def with_health() -> FastAPI:
    app = FastAPI()

    @app.get("/health")
    async def health() -> Response:
        await asyncio.sleep(0)
        return Response()

    return app


def serve(app: FastAPI, port: int) -> None:
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)
