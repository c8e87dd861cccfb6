"""Puts the HTTP layer together.

    RequestObserver -> routing -> ApiKeyGuard -> a route -> Service
                          └── errors, from any layer within -> problem+json

`RequestObserver` counts and logs, `ApiKeyGuard` lets in, `Service` computes.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from litestar import Litestar
from litestar.handlers import HTTPRouteHandler

from padserve.config.structs import ServerConfig
from padserve.http.auth import ApiKeyGuard
from padserve.http.docs import make_docs_routes
from padserve.http.observe import RequestObserver
from padserve.http.openapi import make_document
from padserve.http.operations import make_operation_routes, make_root_route
from padserve.http.problems import exception_handlers
from padserve.http.tasks import make_task_route
from padserve.service.service import Service
from padserve.tasks.base import Task
from padserve.telemetry.metrics import Metrics

Lifespan = Callable[[Litestar], AbstractAsyncContextManager[None]]


def build_app(
    service: Service,
    server: ServerConfig,
    api_keys: tuple[str, ...],
    metrics: Metrics,
    tasks: Sequence[Task[Any]],
    lifespan: Lifespan,
) -> Litestar:
    """The ASGI application. No ``api_keys``: every request is served."""
    handlers = make_routes(service, server, metrics, tasks, with_keys=bool(api_keys))
    app = Litestar(
        handlers,
        guards=[ApiKeyGuard(api_keys)] if api_keys else [],
        exception_handlers=exception_handlers(sorted(_paths(handlers))),
        lifespan=[lifespan],
        openapi_config=None,
        logging_config=None,
    )
    # Litestar runs its middleware inside the routes: there, 404 and 405 would pass unseen
    app.asgi_handler = RequestObserver(metrics)(app.asgi_handler)
    return app


def make_routes(
    service: Service, server: ServerConfig, metrics: Metrics, tasks: Sequence[Task[Any]], with_keys: bool
) -> list[HTTPRouteHandler]:
    handlers = [make_task_route(task, service, server.max_body_bytes) for task in tasks]
    handlers += make_operation_routes(service, metrics)
    handlers += make_docs_routes(make_document(handlers, with_keys))
    return [make_root_route(_paths(handlers)), *handlers]


def _paths(handlers: Sequence[HTTPRouteHandler]) -> dict[str, list[str]]:
    """Methods by path, without the files of the docs page."""
    return {
        path.replace(":path}", "}"): sorted(handler.http_methods)
        for handler in handlers
        for path in handler.paths
        if ":str}" not in path
    }
