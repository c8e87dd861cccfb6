"""The Open Inference Protocol (KServe v2) over REST, for models that embed or classify: texts in, tensors out."""

import math
from typing import Annotated, Any, Literal

import msgspec
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from padserve import __version__
from padserve.core import ModelSpec
from padserve.errors import InvalidField, WrongTask
from padserve.http.adapters.base import Adapter, AnyRequest, Desk
from padserve.http.adapters.dialect import Dialect, Problem
from padserve.http.adapters.fields import Count, Dimensions, NativeOptions, native
from padserve.http.body import BodyDecoder
from padserve.http.exchange import header
from padserve.http.operations import RETRY_AFTER_S, json_response
from padserve.service.service import Reply
from padserve.tasks.base import TaskRequest
from padserve.tasks.classify import ClassifyRequest, TextPair
from padserve.tasks.embed import EmbedRequest

BINARY_HEADER = b"inference-header-content-length"
PAIR = "text_pair"


class KserveParameters(NativeOptions, frozen=True, kw_only=True):
    """Options of /embed and of /classify; each model takes its own, others are ignored."""

    normalize: bool = True
    dimensions: Dimensions | None = None
    prompt_name: str | None = None
    top_k: Count | None = None
    activation: Literal["auto", "softmax", "sigmoid", "none"] = "auto"


class KserveInput(msgspec.Struct, frozen=True, kw_only=True):
    """Texts. ``data``: in row-major order, nested or flat."""

    name: str
    shape: Annotated[list[Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]], msgspec.Meta(min_length=1, max_length=8)]
    datatype: str
    data: list[Any]


class KserveOutputName(msgspec.Struct, frozen=True, kw_only=True):
    name: str


class KserveInferRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``inputs``: one BYTES tensor, and for a classifier of pairs a second called ``text_pair``."""

    id: str | None = None
    parameters: KserveParameters | None = None
    inputs: Annotated[list[KserveInput], msgspec.Meta(min_length=1, max_length=2)]
    outputs: list[KserveOutputName] | None = None


class KserveTensor(msgspec.Struct, frozen=True, kw_only=True):
    """``data``: in row-major order, flat."""

    name: str
    datatype: Literal["FP32", "BYTES"]
    shape: list[int]
    data: list[Any]


class KserveInferReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    model_name: str
    id: str | None = None
    outputs: list[KserveTensor]


class KserveTensorInfo(msgspec.Struct, frozen=True):
    """``shape``: -1 for the number of texts."""

    name: str
    datatype: str
    shape: list[int]


class KserveModel(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    versions: list[str] = []
    platform: str = "padserve"
    inputs: list[KserveTensorInfo]
    outputs: list[KserveTensorInfo]


class KserveServer(msgspec.Struct, frozen=True, kw_only=True):
    name: str = "padserve"
    version: str = __version__
    extensions: list[str] = []


class KserveLive(msgspec.Struct, frozen=True):
    live: bool


class KserveReady(msgspec.Struct, frozen=True, omit_defaults=True):
    ready: bool
    name: str | None = None


class KserveError(msgspec.Struct, frozen=True):
    error: str


def _write(problem: Problem) -> tuple[int, KserveError]:
    """An invalid request is a 400."""
    status = int(problem["status"])
    return 400 if status == 422 else status, KserveError(problem["detail"])


class Kserve(Adapter):
    prefix, tag = "/v2", "open inference protocol"
    tasks = frozenset({"embed", "classify"})
    dialect = Dialect(KserveError, _write)

    def routes(self, desk: Desk) -> list[HTTPRouteHandler]:
        return [*_server_routes(self, desk), *_model_routes(self, desk), _infer_route(self, desk)]


def _server_routes(adapter: Adapter, desk: Desk) -> list[HTTPRouteHandler]:
    @get("/v2", name="kserve-server", opt=adapter.opt("Name, version and extensions", None, KserveServer))
    async def read_server() -> Response[bytes]:
        return json_response(KserveServer())

    live_opt = adapter.opt("The process answers", None, KserveLive, public=True)

    @get("/v2/health/live", name="kserve-live", opt=live_opt)
    async def read_live() -> Response[bytes]:
        return json_response(KserveLive(live=True))

    ready_opt = adapter.opt("Every model is loaded and its worker alive", None, KserveReady, public=True)

    @get("/v2/health/ready", name="kserve-ready", opt=ready_opt)
    async def read_ready() -> Response[bytes]:
        return _ready_response(desk, None)

    return [read_server, read_live, read_ready]


def _ready_response(desk: Desk, name: str | None) -> Response[bytes]:
    ready = desk.service.readiness().ready
    response = json_response(KserveReady(ready, name))
    if not ready:
        response.status_code = 503
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return response


def _model_routes(adapter: Adapter, desk: Desk) -> list[HTTPRouteHandler]:
    model_opt = adapter.opt("Tensors of a model", None, KserveModel)

    @get("/v2/models/{name:str}", name="kserve-model", opt=model_opt)
    async def read_model(name: FromPath[str]) -> Response[bytes]:
        spec = desk.spec(name)
        inputs = [KserveTensorInfo("text", "BYTES", [-1])] if _outputs(spec) else []
        return json_response(KserveModel(name=spec.name, inputs=inputs, outputs=_outputs(spec)))

    ready_opt = adapter.opt("A model is loaded and its worker alive", None, KserveReady)

    @get("/v2/models/{name:str}/ready", name="kserve-model-ready", opt=ready_opt)
    async def read_model_ready(name: FromPath[str]) -> Response[bytes]:
        return _ready_response(desk, desk.spec(name).name)

    return [read_model, read_model_ready]


def _outputs(spec: ModelSpec) -> list[KserveTensorInfo]:
    """None for a model that neither embeds nor classifies."""
    if "embed" in spec.tasks and spec.embedding is not None:
        return [KserveTensorInfo("embedding", "FP32", [-1, spec.embedding.dimensions])]
    if "classify" in spec.tasks:
        shape = [-1, len(spec.labels)]
        return [KserveTensorInfo("labels", "BYTES", shape), KserveTensorInfo("scores", "FP32", shape)]
    return []


def _infer_route(adapter: Adapter, desk: Desk) -> HTTPRouteHandler:
    decoder = BodyDecoder(KserveInferRequest)
    opt = adapter.opt("Embeddings, or labels and scores, of texts", KserveInferRequest, KserveInferReply)

    @post("/v2/models/{name:str}/infer", name="kserve-infer", status_code=200, opt=opt)
    async def infer(request: AnyRequest, name: FromPath[str]) -> Response[bytes]:
        spec = desk.spec(name)
        task = desk.tasks[_task_of(spec)]
        if header(request.scope, BINARY_HEADER) is not None:
            raise InvalidField("binary tensors are not supported; send the data as JSON")
        given = await desk.read(request, decoder, task.name)
        wanted = _wanted(given, spec)
        reply = await desk.run(request, task, _task_request(task.name, spec, given))
        tensors = _embeddings(reply) if task.name == "embed" else _labels(reply)
        outputs = [tensor for tensor in tensors if tensor.name in wanted]
        return desk.answer(reply, KserveInferReply(model_name=reply.model, id=given.id, outputs=outputs))

    return infer


def _task_of(spec: ModelSpec) -> str:
    """Errors: `WrongTask`."""
    found = next((task for task in ("embed", "classify") if task in spec.tasks), None)
    if found is None:
        serves = ", ".join(spec.tasks)
        raise WrongTask(f"/v2 infers with models that embed or classify; {spec.name!r} serves {serves}")
    return found


def _wanted(given: KserveInferRequest, spec: ModelSpec) -> frozenset[str]:
    """Names of the outputs asked for, all when none is. Errors: `InvalidField`."""
    known = [output.name for output in _outputs(spec)]
    wanted = frozenset(output.name for output in given.outputs or ())
    if unknown := wanted - set(known):
        message = f"outputs: {spec.name!r} has no output {min(unknown)!r}; it has {', '.join(known)}"
        raise InvalidField(message, field="outputs")
    return wanted or frozenset(known)


def _task_request(task: str, spec: ModelSpec, given: KserveInferRequest) -> TaskRequest:
    """Errors: `InvalidField`."""
    options = given.parameters or KserveParameters()
    texts, pairs = _tensors(given.inputs)
    if task == "classify":
        inputs: list[str | TextPair] = list(map(TextPair, texts, pairs)) if pairs is not None else [*texts]
        return ClassifyRequest(
            model=spec.name, inputs=inputs, top_k=options.top_k, activation=options.activation, **native(options)
        )
    if pairs is not None:
        raise InvalidField(f"inputs: {spec.name!r} takes one tensor", field="inputs")
    return EmbedRequest(
        model=spec.name,
        inputs=texts,
        normalize=options.normalize,
        dimensions=options.dimensions,
        prompt_name=options.prompt_name,
        **native(options),
    )


def _tensors(inputs: list[KserveInput]) -> tuple[list[str], list[str] | None]:
    """The texts, and the other halves of pairs. Errors: `InvalidField`."""
    if len(inputs) == 1:
        return _texts(inputs[0]), None
    first, second = sorted(inputs, key=lambda tensor: tensor.name == PAIR)
    if second.name != PAIR or first.name == PAIR:
        raise InvalidField(f"inputs: of two tensors one is called {PAIR!r}", field="inputs")
    texts, pairs = _texts(first), _texts(second)
    if len(texts) != len(pairs):
        message = f"inputs: {len(texts)} texts and {len(pairs)} in {PAIR!r}; they go two by two"
        raise InvalidField(message, field="inputs")
    return texts, pairs


def _texts(tensor: KserveInput) -> list[str]:
    """Errors: `InvalidField`."""
    place = f"input {tensor.name[:64]!r}"
    if tensor.datatype != "BYTES":
        raise InvalidField(f"{place}: datatype is {tensor.datatype[:64]!r}, texts are 'BYTES'", field="inputs")
    elements = _flat(tensor.data, len(tensor.shape))
    if not all(isinstance(element, str) for element in elements):
        raise InvalidField(f"{place}: data holds something that is no text", field="inputs")
    if math.prod(tensor.shape) != len(elements):
        message = f"{place}: shape {tensor.shape} has {math.prod(tensor.shape)} elements, data {len(elements)}"
        raise InvalidField(message, field="inputs")
    return elements


def _flat(data: list[Any], rank: int) -> list[Any]:
    """Elements in row-major order; lists deeper than the rank stay."""
    for _ in range(rank - 1):
        if not any(isinstance(row, list) for row in data):
            break
        data = [element for row in data for element in (row if isinstance(row, list) else [row])]
    return data


def _embeddings(reply: Reply) -> list[KserveTensor]:
    results: list[Any] = reply.results
    shape = [len(results), len(results[0].embedding)]
    data = [number for result in results for number in result.embedding]
    return [KserveTensor(name="embedding", datatype="FP32", shape=shape, data=data)]


def _labels(reply: Reply) -> list[KserveTensor]:
    results: list[Any] = reply.results
    shape = [len(results), len(results[0].labels)]
    found = [label for result in results for label in result.labels]
    return [
        KserveTensor(name="labels", datatype="BYTES", shape=shape, data=[each.label for each in found]),
        KserveTensor(name="scores", datatype="FP32", shape=shape, data=[each.score for each in found]),
    ]
