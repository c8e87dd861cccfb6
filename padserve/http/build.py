"""Puts the HTTP layer together.

    RequestObserver -> routing -> ApiKeyGuard -> a route, native or of an adapter -> Service
                          └── errors, from any layer within -> problem+json, or the adapter's own words

`RequestObserver` counts and logs, `ApiKeyGuard` lets in, `Service` computes.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from litestar import Litestar
from litestar.handlers import HTTPRouteHandler

from padserve.config.structs import ServerConfig
from padserve.http.adapters.base import Desk
from padserve.http.adapters.dialect import in_dialects
from padserve.http.adapters.table import adapters_for
from padserve.http.auth import ApiKeyGuard
from padserve.http.docs import make_docs_routes
from padserve.http.observe import RequestObserver
from padserve.http.openapi import make_document, path_of
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
    dialects = {
        adapter.prefix: adapter.dialect for adapter in adapters_for(task.name for task in tasks) if adapter.prefix
    }
    app = Litestar(
        handlers,
        guards=[ApiKeyGuard(api_keys)] if api_keys else [],
        exception_handlers=in_dialects(exception_handlers(sorted(_paths(handlers))), dialects),
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
    desk = Desk(service, server, tasks)
    adapters = adapters_for(desk.tasks)
    shapes = {name: shape for adapter in adapters for name, shape in adapter.shapes(desk).items()}
    handlers = [make_task_route(task, service, server.max_body_bytes, shapes.get(task.name)) for task in tasks]
    handlers += make_operation_routes(service, metrics)
    handlers += [route for adapter in adapters for route in adapter.routes(desk)]
    handlers += make_docs_routes(make_document(handlers, with_keys))
    return [make_root_route(_paths(handlers)), *handlers]


def _paths(handlers: Sequence[HTTPRouteHandler]) -> dict[str, list[str]]:
    """Methods by path, without the files of the docs page."""
    return {
        path_of(path): sorted(handler.http_methods)
        for handler in handlers
        for path in handler.paths
        if not path.startswith("/docs/")
    }
