"""Health, metrics, models: what operators and load balancers ask for."""

from typing import Any

import msgspec
from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from padserve import __version__
from padserve.core import ModelSpec
from padserve.errors import Starting, Unavailable
from padserve.http.auth import PUBLIC
from padserve.http.openapi import OPERATION, Operation
from padserve.service.service import Service
from padserve.telemetry.metrics import MEDIA_TYPE, Metrics

RETRY_AFTER_S = 2


def make_operation_routes(service: Service, metrics: Metrics) -> list[HTTPRouteHandler]:
    return [*_health_routes(service), _metrics_route(metrics), *_model_routes(service)]


def _health_routes(service: Service) -> list[HTTPRouteHandler]:
    @get("/livez", opt=_opt("The process answers", public=True))
    async def livez() -> Response[bytes]:
        return json_response({"status": "ok"})

    @get("/readyz", opt=_opt("Every model is loaded and its worker alive", public=True))
    async def readyz() -> Response[bytes]:
        readiness = service.readiness()
        if not readiness.ready:
            reasons = list(readiness.reasons)
            raise Unavailable(f"not ready: {'; '.join(reasons) or 'unknown'}", RETRY_AFTER_S, reasons=reasons)
        return json_response({"status": "ready"})

    @get("/startupz", opt=_opt("Every model has loaded once", public=True))
    async def startupz() -> Response[bytes]:
        readiness = service.readiness()
        if not readiness.started:
            raise Starting("models are still loading", RETRY_AFTER_S, reasons=list(readiness.reasons))
        return json_response({"status": "started"})

    return [livez, readyz, startupz]


def _metrics_route(metrics: Metrics) -> HTTPRouteHandler:
    @get("/metrics", opt=_opt("Prometheus metrics", public=True, reply_media_type="text/plain"))
    async def read_metrics() -> Response[bytes]:
        return Response(metrics.render(), media_type="text/plain", headers={"Content-Type": MEDIA_TYPE})

    return read_metrics


def _model_routes(service: Service) -> list[HTTPRouteHandler]:
    @get("/models", opt=_opt("The models served"))
    async def list_models() -> Response[bytes]:
        return json_response({"models": [describe_model(spec) for spec in service.specs()]})

    @get("/models/{name:path}", opt=_opt("One model: limits, labels, live counters"))
    async def read_model(name: FromPath[str]) -> Response[bytes]:
        return json_response(service.model_status(name.removeprefix("/")))

    return [list_models, read_model]


def make_root_route(paths: dict[str, list[str]]) -> HTTPRouteHandler:
    """``paths``: methods by path."""

    @get("/", opt=_opt("Name, version and routes"))
    async def read_root() -> Response[bytes]:
        return json_response({"name": "padserve", "version": __version__, "docs": "/docs", "routes": paths})

    return read_root


def describe_model(spec: ModelSpec) -> dict[str, Any]:
    """One line of the list: what a client needs to choose."""
    return {
        "name": spec.name,
        "tasks": spec.tasks,
        "default": spec.default,
        "architecture": spec.architecture,
        "dtype": spec.dtype,
        "max_length": spec.max_length,
        "source": spec.source,
    }


def json_response(content: Any) -> Response[bytes]:
    return Response(msgspec.json.encode(content, enc_hook=str), media_type="application/json")


def _opt(summary: str, public: bool = False, reply_media_type: str = "application/json") -> dict[str, Any]:
    operation = Operation(summary, "operations", reply_media_type=reply_media_type)
    return {OPERATION: operation, PUBLIC: public}
