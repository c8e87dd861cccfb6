"""The composition root: the one place where parts are made and wired, and the process that serves them.

SIGTERM -> /readyz 503 at once -> accepted work finishes, at most drain_timeout_s -> exit 0
"""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import uvicorn
from litestar import Litestar

from padserve.batching.placement import plan_placement
from padserve.batching.workers import Supervision
from padserve.config.structs import Config, ModelConfig
from padserve.errors import ConfigError, Draining
from padserve.http.auth import read_api_keys
from padserve.http.build import build_app
from padserve.http.listen import bound
from padserve.models.generators.load import LoadedGenerator
from padserve.models.loaded import LoadedModel
from padserve.service.catalog import check_models
from padserve.service.engine import Engine
from padserve.service.service import Service
from padserve.tasks.table import all_tasks
from padserve.telemetry.logs import configure_logging
from padserve.telemetry.metrics import Metrics
from padserve.text.pool import TokenizerPool

logger = logging.getLogger(__name__)
TOKENIZER_THREADS = 2
KEEP_ALIVE_S = 75
"""Longer than clients and proxies keep an idle connection, so that they close it and none is reset under a request."""
LAST_REPLIES_S = 5
"""For what still runs or is being sent when draining has ended."""


@dataclass(slots=True)
class Runtime:
    """One service and its parts. ``failure``: why the process must end; ``stop`` is called when it must."""

    config: Config
    service: Service
    engine: Engine
    tokenizers: TokenizerPool
    metrics: Metrics
    failure: BaseException | None = None
    stop: Callable[[], None] = field(default=lambda: None)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Litestar) -> AsyncIterator[None]:
        """Load in the background, so that health answers from the first moment; stop everything at the end."""
        starting = asyncio.create_task(self.engine.start())
        starting.add_done_callback(self._started)
        try:
            yield
        finally:
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await starting
            await asyncio.to_thread(self.engine.stop, self.config.server.drain_timeout_s)
            self.tokenizers.close()

    def _started(self, starting: asyncio.Task[None]) -> None:
        if starting.cancelled():
            return
        error = starting.exception()
        if error is not None:
            self.fail(error)
            return
        logger.info("ready: %s", ", ".join(self.engine.names))

    def fail(self, error: BaseException) -> None:
        """End the process with an error."""
        self.failure = error
        if not isinstance(error, ConfigError):
            logger.critical("the server cannot go on", exc_info=error)
        self.stop()


def create_runtime(
    config: Config,
    load: Callable[[ModelConfig], LoadedModel] | None = None,
    supervision: Supervision | None = None,
) -> Runtime:
    """Make the parts. ``load`` stands in for `load_served` in tests."""
    metrics = Metrics(tuple(model.name for model in config.models), tuple(task.name for task in all_tasks()))
    placement = plan_placement(config.server)
    logger.info("workers x threads: %d x %d; %s", placement.workers, placement.threads, placement.why)
    tokenizers = TokenizerPool(TOKENIZER_THREADS)
    runtime: Runtime
    engine = Engine(
        config.models, load or load_served, placement, metrics, lambda error: runtime.fail(error), supervision
    )
    service = Service(engine, tokenizers, metrics, config.server.max_queue_tokens)
    runtime = Runtime(config, service, engine, tokenizers, metrics)
    return runtime


def load_served(model: ModelConfig) -> LoadedModel | LoadedGenerator:
    """Load a model and settle its tasks, on the machine's best device."""
    from dataclasses import replace

    import torch
    from transformers.utils import logging as transformers_logging

    from padserve.models.checkpoint import read_checkpoint
    from padserve.models.generators.load import load_generator
    from padserve.models.load import load_model
    from padserve.service.catalog import with_tasks

    transformers_logging.disable_progress_bar()
    transformers_logging.disable_default_handler()
    transformers_logging.enable_propagation()
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    checkpoint = read_checkpoint(model)
    loaded: LoadedModel | LoadedGenerator
    if checkpoint.head in ("causal-lm", "seq2seq-lm"):
        loaded = load_generator(model, checkpoint, device)
    else:
        loaded = load_model(model, device)
    return replace(loaded, spec=with_tasks(loaded.spec, model))


def create_app(runtime: Runtime) -> Litestar:
    """The ASGI application of a runtime."""
    server = runtime.config.server
    keys = read_api_keys(server.api_keys_file) if server.api_keys_file else ()
    return build_app(runtime.service, server, keys, runtime.metrics, all_tasks(), runtime.lifespan)


class Server(uvicorn.Server):
    """uvicorn that drains on SIGTERM and SIGINT; a second signal ends it at once."""

    def __init__(self, runtime: Runtime, app: Litestar) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                lifespan="on",
                timeout_graceful_shutdown=LAST_REPLIES_S,
                server_header=False,
            )
        )
        self._runtime = runtime
        self._draining: asyncio.Task[None] | None = None
        runtime.stop = partial(setattr, self, "should_exit", True)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        yield
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        if self._draining is not None:
            self.should_exit = self.force_exit = True
            return
        self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        service, timeout_s = self._runtime.service, self._runtime.config.server.drain_timeout_s
        service.start_draining()
        logger.info("draining, at most %g s", timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await service.drained()
        except TimeoutError:
            logger.warning("drain_timeout_s passed; what still waits ends with an error")
            self._runtime.engine.fail_waiting(Draining("the server shut down before this request was run"))
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in getattr(self, "servers", ()):
            for each in listener.sockets:
                logger.info("listening on %s", _address(each.getsockname()))


def _address(name: object) -> str:
    return f"http://{name[0]}:{name[1]}" if isinstance(name, tuple) else f"unix:{name}"


def serve(config: Config) -> int:
    """Run the server until it is told to stop. Returns the process's exit status. Errors: `ConfigError`."""
    server = config.server
    check_models(config.models)
    with bound(server.host, server.port, server.uds) as sockets:
        configure_logging(server.log_level, server.log_format)
        runtime = create_runtime(config)
        Server(runtime, create_app(runtime)).run(sockets)
    if runtime.failure is None:
        return 0
    if isinstance(runtime.failure, ConfigError):
        raise runtime.failure
    return 1
