"""What an adapter is: another server's routes over our tasks.

    its request -> Desk.read -> a task's request -> Desk.run (Service) -> Reply -> its reply
                                      errors, from anywhere -> its Dialect

An adapter is one file beside this one and one line in ``table.py``. It changes shapes, and computes nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import msgspec
from litestar import Request, Response
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream

from padserve.config.structs import ServerConfig
from padserve.core import ModelSpec
from padserve.errors import PadserveError, Starting, UnknownModel
from padserve.http.adapters.dialect import Dialect, error_classes
from padserve.http.auth import PUBLIC
from padserve.http.body import BodyDecoder, check_media_type, read_body
from padserve.http.disconnect import while_connected
from padserve.http.exchange import Exchange, exchange_of
from padserve.http.openapi import OPERATION, OPERATION_ERRORS, TASK_ERRORS, Operation
from padserve.http.sse import Wording, stream_response
from padserve.http.tasks import Shape, encode_json, read_timeout_ms, timing_headers
from padserve.service.catalog import select
from padserve.service.service import Reply, RequestContext, Service
from padserve.tasks.base import ItemProblem, Task, TaskRequest
from padserve.tasks.generating import GeneratingRequest, GeneratingTask

AnyRequest = Request[Any, Any, Any]
RequestT = TypeVar("RequestT", bound=msgspec.Struct)


class Desk:
    """Takes the requests of every adapter in and gives their replies out, as the native routes do."""

    def __init__(self, service: Service, server: ServerConfig, tasks: Sequence[Task[Any]]) -> None:
        self.service, self.server = service, server
        self.tasks: Mapping[str, Task[Any]] = {task.name: task for task in tasks}

    async def read(self, request: AnyRequest, decoder: BodyDecoder[RequestT], task: str) -> RequestT:
        """``task``: the name under which the request counts. Errors: `PadserveError`."""
        exchange_of(request.scope).task = task
        check_media_type(request.scope)
        return decoder.decode(await read_body(request.scope, request.receive, self.server.max_body_bytes))

    async def run(self, request: AnyRequest, task: Task[Any], asked: TaskRequest) -> Reply:
        """Every input's result: these protocols have no place for the error of one, so it is the request's.

        Errors: `PadserveError`.
        """
        exchange, context = self._begin(request, task, asked)
        reply = await while_connected(self.service.run(task, asked, context), request.receive)
        exchange.model, exchange.tokens, exchange.timings = reply.model, reply.usage.input_tokens, reply.timings
        for place, result in enumerate(reply.results):
            problem = getattr(result, "error", None)
            if problem is not None:
                raise _failure(problem, getattr(result, "index", place))
        return reply

    async def stream(
        self, request: AnyRequest, task: GeneratingTask[Any], asked: GeneratingRequest, wording: Wording
    ) -> Stream:
        """The events of a request as they come. Errors: `PadserveError`, before the first of them."""
        exchange, context = self._begin(request, task, asked)
        events = self.service.stream(task, asked, context)
        return await stream_response(events, request.scope, request.receive, exchange, wording)

    def _begin(self, request: AnyRequest, task: Task[Any], asked: TaskRequest) -> tuple[Exchange, RequestContext]:
        exchange = exchange_of(request.scope)
        exchange.task, exchange.model = task.name, asked.model or ""
        return exchange, RequestContext(exchange.request_id, exchange.received_at, read_timeout_ms(request.scope))

    def answer(self, reply: Reply, content: Any) -> Response[bytes]:
        return Response(encode_json(content), media_type="application/json", headers=timing_headers(reply.timings))

    def spec(self, name: str) -> ModelSpec:
        """A model by its name. Errors: `UnknownModel`; `Starting` while it may still come."""
        specs = self.service.specs()
        found = next((spec for spec in specs if spec.name == name), None)
        if found is not None:
            return found
        self._check_started()
        raise UnknownModel(f"no model is named {name!r}; served are {', '.join(spec.name for spec in specs) or 'none'}")

    def select(self, wanted: str | None, *tasks: str) -> ModelSpec:
        """A model by its name, else the one that answers the first of these tasks that any model serves.

        Errors: `UnknownModel`, `Starting`, `WrongTask`.
        """
        if wanted is not None:
            return self.spec(wanted)
        self._check_started()
        specs = self.service.specs()
        task = next((task for task in tasks if any(task in spec.tasks for spec in specs)), tasks[0])
        return select(specs, task, None, ())

    def _check_started(self) -> None:
        if not self.service.readiness().started:
            raise Starting("models are still loading; see /startupz", retry_after_s=2)


def _failure(problem: ItemProblem, place: int) -> PadserveError:
    """The error that stands in a result, as one to raise."""
    kind = next((each for each in error_classes() if each.code == problem.code), PadserveError)
    error = kind.__new__(kind)
    PadserveError.__init__(error, f"input {place}: {problem.message}")
    return error


class Adapter:
    """Base of all adapters. ``prefix``: under it errors are in the ``dialect``; empty: it has no paths of its own.
    ``tasks``: those that it calls.
    """

    prefix: ClassVar[str]
    tag: ClassVar[str]
    tasks: ClassVar[frozenset[str]]
    dialect: ClassVar[Dialect]

    def routes(self, desk: Desk) -> list[HTTPRouteHandler]:
        raise NotImplementedError

    def shapes(self, desk: Desk) -> dict[str, Shape]:
        """Other shapes of native routes, by their tasks."""
        return {}

    def opt(
        self, summary: str, request_type: Any = None, reply_type: Any = None, *, public: bool = False
    ) -> dict[str, Any]:
        """What the API docs and the key guard know of a handler."""
        native = TASK_ERRORS if request_type else OPERATION_ERRORS
        operation = Operation(
            summary,
            self.tag,
            request_type,
            reply_type=reply_type,
            error_type=self.dialect.error_type,
            errors=self.dialect.described(map(int, native)),
        )
        return {OPERATION: operation, PUBLIC: public}
