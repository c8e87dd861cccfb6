"""The models and the workers that run them: loading, warm-up, supervision, shutdown."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from padserve.batching.buckets import LengthBuckets
from padserve.batching.entry import Entry
from padserve.batching.execute import Run
from padserve.batching.lane import Lane
from padserve.batching.placement import Placement, set_threads
from padserve.batching.queue import BatchQueue
from padserve.batching.warmup import measure_target_tokens
from padserve.batching.workers import Supervision, WorkerPool
from padserve.config.structs import ModelConfig
from padserve.core import ModelSpec
from padserve.errors import ConfigError, DeadlineExceeded, Draining, EngineDown, PadserveError, UnknownModel
from padserve.generate.blocks import BlockPool
from padserve.generate.engine import GenerationEngine
from padserve.generate.worker import GenerationWorker
from padserve.models.agreement import Agreement
from padserve.models.generators.load import LoadedGenerator
from padserve.models.loaded import LoadedModel
from padserve.telemetry.metrics import Metrics
from padserve.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)
CACHE_TOKENS = 32_768
"""Tokens whose keys and values a generating model's cache holds."""
LEAST_BLOCKS = 4


@dataclass(frozen=True, slots=True)
class Served:
    """A model in service. ``target_tokens``: the batch size beyond which the device gains nothing."""

    loaded: LoadedModel
    target_tokens: int


Loaded = LoadedModel | LoadedGenerator


@dataclass(frozen=True, slots=True)
class Generating:
    """A generating model in service."""

    loaded: LoadedGenerator
    worker: GenerationWorker

    def live(self) -> dict[str, Any]:
        engine, generation = self.worker.engine, self.loaded.spec.generation
        chosen = None if generation is None else generation.speculation
        told = None if chosen is None else {"method": chosen.method, "max_draft_tokens": chosen.max_draft_tokens}
        return {
            "speculation": told,
            "why": self.loaded.why,
            "deviation": self.loaded.load_error,
            "agreement": _told(self.loaded.agreement),
            "running": engine.running,
            "waiting": engine.waiting,
            "block_size": engine.pool.block_size,
            "blocks": engine.pool.num_blocks - 1,
            "blocks_used": engine.pool.used,
            "blocks_cached": engine.pool.cached,
        }


class Engine:
    """``load`` loads one model; it runs in a thread of its own, so that health answers meanwhile."""

    def __init__(
        self,
        models: Sequence[ModelConfig],
        load: Callable[[ModelConfig], Loaded],
        placement: Placement,
        metrics: Metrics,
        on_fatal: Callable[[BaseException], None],
        supervision: Supervision | None = None,
    ) -> None:
        self._configs, self._load, self.placement, self._metrics = tuple(models), load, placement, metrics
        self._on_fatal = on_fatal
        self._served: dict[str, Served] = {}
        self._generating: dict[str, Generating] = {}
        self._runs: dict[str, Run] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.queue = BatchQueue(metrics, partial(self._post, self._expire))
        self._workers = WorkerPool(
            self.queue,
            self._runs,
            placement.workers,
            metrics,
            report=lambda report: self._post(report.deliver),
            on_fatal=self._give_up,
            prepare=partial(set_threads, placement.threads),
            supervision=supervision,
        )
        self._fatal: str | None = None
        self._started = self._stopping = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(config.name for config in self._configs)

    @property
    def started(self) -> bool:
        return self._started

    @property
    def alive(self) -> bool:
        return self._workers.alive > 0

    async def start(self) -> None:
        """Load every model, then start the workers. Errors: `ConfigError`."""
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._load_all)
        self._workers.start()
        self._started = True

    def _load_all(self) -> None:
        set_threads(self.placement.threads)
        for config in self._configs:
            if self._stopping:
                return
            started = time.perf_counter()
            loaded = self._load(config)
            if isinstance(loaded, LoadedGenerator):
                self._serve_generator(config, loaded)
                logger.info("model %s ready in %.1f s: %s", config.name, time.perf_counter() - started, loaded.why)
                continue
            target = measure_target_tokens(loaded)
            self._serve(config, Served(loaded, target))
            logger.info(
                "model %s ready in %.1f s: %s; batches of %d tokens",
                config.name,
                time.perf_counter() - started,
                loaded.why,
                target,
            )

    def _serve(self, config: ModelConfig, served: Served) -> None:
        spec = served.loaded.spec
        edges = None if config.buckets == "auto" else config.buckets
        lane = Lane(
            spec.name,
            LengthBuckets(edges, spec.max_length),
            spec.max_batch_tokens,
            served.target_tokens,
            spec.batching == "padded",
            config.max_wait_ms / 1000,
        )
        self.queue.add_lane(lane)
        self._runs[spec.name] = served.loaded.run
        self._served[spec.name] = served

    def _serve_generator(self, config: ModelConfig, loaded: LoadedGenerator) -> None:
        pool = _pool(config, loaded)
        worker = GenerationWorker(
            config.name,
            GenerationEngine(loaded.generator, pool, on_speculated=partial(self._metrics.speculated, config.name)),
            partial(set_threads, self.placement.threads),
            lambda tokens: None,
        )
        worker.start()
        self._generating[config.name] = Generating(loaded, worker)

    def tokenizer(self, name: str) -> Tokenizer:
        return self._loaded()[name].tokenizer

    def worker(self, name: str) -> GenerationWorker:
        """The thread that generates with a model."""
        return self._generating[name].worker

    def post(self, callback: Callable[..., None], *args: Any) -> None:
        """Call in the event loop's thread; call it from any."""
        self._post(callback, *args)

    def _loaded(self) -> dict[str, Loaded]:
        found: dict[str, Loaded] = {}
        for name in self.names:
            served = self._served.get(name) or self._generating.get(name)
            if served is not None:
                found[name] = served.loaded
        return found

    def specs(self) -> list[ModelSpec]:
        return [loaded.spec for loaded in self._loaded().values()]

    def spec_named(self, name: str) -> ModelSpec:
        loaded = self._loaded().get(name)
        if loaded is None:
            raise UnknownModel(f"no model is named {name!r}; served are {', '.join(self.names) or 'none'}")
        return loaded.spec

    def live(self, name: str) -> dict[str, Any]:
        """Counters and choices of a model for operators."""
        if name in self._generating:
            return self._generating[name].live()
        served, (depth, tokens) = self._served[name], self.queue.depth(name)
        return {
            "buckets": list(self.queue.edges(name)),
            "runs": served.loaded.runner.kind,
            "why": served.loaded.why,
            "deviation": served.loaded.load_error,
            "agreement": _told(served.loaded.agreement),
            "batch_tokens": served.target_tokens,
            "queue_depth": depth,
            "queue_tokens": tokens,
            "workers": self.placement.workers,
            "threads": self.placement.threads,
        }

    def complaints(self) -> list[str]:
        """Why the engine is not ready; empty when it is."""
        if self._fatal is not None:
            return [self._fatal]
        loading = [name for name in self.names if name not in self._served and name not in self._generating]
        if loading:
            return [f"model {name} is loading" for name in loading]
        dead = [name for name, generating in self._generating.items() if not generating.worker.alive]
        return [*(f"the generation worker of {name} died" for name in dead), *self._workers.complaints()]

    def seconds_to_clear(self) -> float:
        return self.queue.seconds_to_clear() / self.placement.workers

    def stop(self, timeout_s: float) -> None:
        """End what still waits with an error, and stop the workers."""
        self._stopping = True
        self.queue.close()
        self.fail_waiting(Draining("the server shut down before this request was run"))
        for generating in self._generating.values():
            generating.worker.stop(Draining("the server shut down before this text was finished"), timeout_s)
        self._workers.stop(timeout_s)

    def _post(self, callback: Callable[..., None], *args: Any) -> None:
        """Call in the event loop's thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *args)

    def _expire(self, entries: list[Entry]) -> None:
        _settle_all(entries, DeadlineExceeded("the deadline passed while the request was queued"))

    def fail_waiting(self, error: PadserveError) -> None:
        """End what waits, not what runs, with an error. Call from any thread."""
        self._post(_settle_all, self.queue.drain(), error)

    def _give_up(self, error: BaseException) -> None:
        self._fatal = f"device workers died repeatedly ({type(error).__name__})"
        self.fail_waiting(EngineDown("device workers died repeatedly; the process exits"))
        self._post(self._on_fatal, error)


def _pool(config: ModelConfig, loaded: LoadedGenerator) -> BlockPool:
    """Errors: `ConfigError` where the memory that is configured holds nothing to speak of."""
    cache, token_bytes = config.cache, loaded.generator.token_bytes
    tokens = int(cache.memory_gb * 1e9) // token_bytes if cache.memory_gb else CACHE_TOKENS
    blocks = tokens // cache.block_size
    if blocks < LEAST_BLOCKS:
        least = LEAST_BLOCKS * cache.block_size * token_bytes / 1e9
        raise ConfigError(
            f"models.{config.name}.cache.memory_gb: {cache.memory_gb} holds {tokens} tokens of {token_bytes} bytes; "
            f"at least {least:.3g} is needed"
        )
    return BlockPool(blocks, cache.block_size, prefix_caching=cache.prefix_caching)


def _told(agreement: Agreement | None) -> dict[str, Any] | None:
    """For operators."""
    if agreement is None:
        return None
    return {"measure": agreement.measure, "value": agreement.value, "bound": agreement.bound}


def _settle_all(entries: Iterable[Entry], error: PadserveError) -> None:
    for entry in entries:
        entry.ticket.settle(entry.index, error)
