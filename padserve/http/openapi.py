"""The OpenAPI 3.1 document, made from the Structs that decode and encode: what it says is what is accepted."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from litestar.handlers import HTTPRouteHandler

from padserve import __version__
from padserve.http.auth import PUBLIC
from padserve.tasks.base import ItemError

OPERATION = "operation"
"""Key of a handler's ``opt`` that holds its `Operation`."""
REF_TEMPLATE = "#/components/schemas/{name}"
DESCRIPTION = "Transformers over HTTP, packed and exact."
Schema = dict[str, Any]
TASK_ERRORS = {
    "400": "Malformed JSON, or text that is not valid Unicode",
    "401": "Missing or wrong API key",
    "404": "Unknown model",
    "413": "Body too large, or more tokens than the queue can ever hold",
    "415": "Body that is not JSON",
    "422": "Invalid field, input too long, model that does not serve the task",
    "429": "Queue full; see Retry-After",
    "500": "Fault of the server",
    "503": "Starting, draining or engine down; see Retry-After",
    "504": "Deadline exceeded",
}
OPERATION_ERRORS = {code: TASK_ERRORS[code] for code in ("401", "404", "500", "503")}


class Problem(msgspec.Struct, frozen=True):
    """An error (RFC 9457). Some codes have more members, such as `length` and `max_length`."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    input_tokens: int
    output_tokens: int | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True, slots=True)
class Operation:
    """What the document says of one handler. Request and result types are msgspec Structs.

    ``result_type``: an entry of the native envelope; ``reply_type``: a whole reply, of any msgspec type.
    ``other_shape``: a request that is taken too, and its reply.
    ``error_type``, ``errors``: the body of errors and what each status says, where they are not the native ones.
    """

    summary: str
    tag: str
    request_type: type[msgspec.Struct] | None = None
    result_type: type[msgspec.Struct] | None = None
    reply_media_type: str = "application/json"
    reply_type: Any = None
    error_type: type[msgspec.Struct] = Problem
    errors: Mapping[str, str] | None = None
    other_shape: tuple[type[msgspec.Struct], type[msgspec.Struct]] | None = None


def path_of(path: str) -> str:
    """A handler's path without the types of its parameters."""
    return re.sub(r":\w+}", "}", path)


def make_document(handlers: Sequence[HTTPRouteHandler], with_keys: bool) -> Schema:
    """``with_keys``: API keys are needed. Handlers without an `Operation` are left out."""
    documented = [(handler, handler.opt[OPERATION]) for handler in handlers if OPERATION in handler.opt]
    components = Components([operation for _, operation in documented])
    document: Schema = {
        "openapi": "3.1.0",
        "info": {"title": "padserve", "version": __version__, "description": DESCRIPTION},
        "paths": {},
        "components": {"schemas": components.schemas},
    }
    for handler, operation in documented:
        for path in handler.paths:
            methods = document["paths"].setdefault(path_of(path), {})
            described = _describe(handler, operation, components)
            methods.update({method.lower(): described for method in sorted(handler.http_methods)})
    if with_keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


class Components:
    """The schemas that operations refer to."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        operations = list(operations)
        used = [kind for each in operations for kind in (each.request_type, each.result_type, each.reply_type) if kind]
        used += [kind for each in operations for kind in each.other_shape or ()]
        errors = [operation.error_type for operation in operations]
        types: list[Any] = list(dict.fromkeys([Problem, Usage, ItemError, *used, *errors]))
        refs, self.schemas = msgspec.json.schema_components(types, ref_template=REF_TEMPLATE)
        self._refs: dict[Any, Schema] = dict(zip(types, refs, strict=True))
        for operation in operations:
            if operation.result_type is not None:
                self.schemas[_reply_name(operation.result_type)] = self._envelope(operation.result_type)

    def of(self, kind: Any) -> Schema:
        return self._refs[kind]

    def request(self, operation: Operation) -> Schema:
        own = self.of(operation.request_type)
        return {"anyOf": [own, self.of(operation.other_shape[0])]} if operation.other_shape else own

    def reply(self, operation: Operation) -> Schema:
        own = self._reply(operation)
        return {"anyOf": [own, self.of(operation.other_shape[1])]} if operation.other_shape else own

    def _reply(self, operation: Operation) -> Schema:
        if operation.result_type is not None:
            return {"$ref": REF_TEMPLATE.format(name=_reply_name(operation.result_type))}
        return self.of(operation.reply_type) if operation.reply_type else {}

    def _envelope(self, result_type: type[msgspec.Struct]) -> Schema:
        entry = {"anyOf": [self.of(result_type), self.of(ItemError)]}
        properties = {
            "model": {"type": "string"},
            "results": {"type": "array", "items": entry},
            "usage": self.of(Usage),
        }
        return {"type": "object", "properties": properties, "required": list(properties)}


def _reply_name(result_type: type[msgspec.Struct]) -> str:
    return f"{result_type.__name__.removesuffix('Result')}Reply"


def _describe(handler: HTTPRouteHandler, operation: Operation, components: Components) -> Schema:
    reply = {operation.reply_media_type: {"schema": components.reply(operation)}}
    error_media_type = "application/problem+json" if operation.error_type is Problem else "application/json"
    problem = {error_media_type: {"schema": components.of(operation.error_type)}}
    errors = operation.errors or (TASK_ERRORS if operation.request_type else OPERATION_ERRORS)
    described: Schema = {
        "operationId": handler.name or handler.handler_name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": {"200": {"description": "OK", "content": reply}}
        | {status: {"description": text, "content": problem} for status, text in errors.items()},
    }
    if operation.request_type is not None:
        content = {"application/json": {"schema": components.request(operation)}}
        described["requestBody"] = {"required": True, "content": content}
    if parameters := _parameters(handler, operation):
        described["parameters"] = parameters
    if handler.opt.get(PUBLIC):
        described["security"] = []
    return described


def _parameters(handler: HTTPRouteHandler, operation: Operation) -> list[Schema]:
    names = dict.fromkeys(name for path in handler.paths for name in re.findall(r"{(\w+):\w+}", path))
    parameters = [_parameter("path", name, {"type": "string"}) for name in names]
    if operation.request_type is not None:
        parameters += [
            _parameter("header", "X-Request-Timeout-Ms", {"type": "integer", "minimum": 1}),
            _parameter("header", "X-Request-Id", {"type": "string", "maxLength": 128}),
        ]
    return parameters


def _parameter(place: str, name: str, schema: Schema) -> Schema:
    return {"in": place, "name": name, "required": place == "path", "schema": schema}
