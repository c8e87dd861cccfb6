"""``padserve run``: a task over all rows of a file, with no server.

    file -> rows -> groups -> Service.run, many at once -> lines in the input's order -> file

Exit status 0: every row is in the output, as a result or as an error. 2: wrong configuration. 1: anything else.
"""

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec

from padserve.app import Runtime, create_runtime
from padserve.cli.answers import Answer, Answers
from padserve.cli.files import Block, BrokenFile, Source, format_of, open_source
from padserve.cli.flow import Aside, Flow
from padserve.cli.output import Output, open_output
from padserve.cli.progress import Progress
from padserve.cli.rows import Group, Rows, grouped
from padserve.config.keys import nearest
from padserve.config.structs import Config, ModelConfig
from padserve.errors import ConfigError, UnknownRoute
from padserve.service.catalog import check_models, describe
from padserve.tasks.base import Task
from padserve.tasks.table import get_task
from padserve.telemetry.logs import configure_logging

logger = logging.getLogger(__name__)
ROWS_A_GROUP = 32
BATCHES_AHEAD = 4
"""Device batches a worker that are under way: one runs, one is formed, the others are tokenized or written."""
BYTES_A_TOKEN = 4
NO_LIMIT = 2**62


def run(options: argparse.Namespace, config: Config) -> int:
    """Run the command. Returns the exit status. Errors: `ConfigError`, `BrokenPipeError`."""
    try:
        with contextlib.ExitStack() as files:
            job = make_job(options, config, files)
            if job.output.finished:
                rows, errors = job.output.rows, job.output.errors
                say(f"{options.output}: all {rows:,} rows are done already, {errors:,} with an error")
                return 0
            configure_logging(config.server.log_level, config.server.log_format)
            return asyncio.run(job.execute())
    except BrokenFile as error:
        say(str(error))
    except (ConfigError, BrokenPipeError):
        raise
    except Exception:
        logger.critical("the run cannot go on", exc_info=True)
    except KeyboardInterrupt:
        say("stopped before it began")
    return 1


def say(text: str) -> None:
    print(f"padserve: {text}", file=sys.stderr, flush=True)


def make_job(options: argparse.Namespace, config: Config, files: contextlib.ExitStack) -> "Job":
    """All that can be told before a model is loaded. ``files`` closes what is opened. Errors: `ConfigError`."""
    task = known_task(options.task)
    defaults, size = read_options(options.options), read_batch(options.batch)
    kind = format_of(options.input, options.format)
    rows = Rows(task, defaults, options.field, options.id, texts=kind == "csv")
    source = files.enter_context(contextlib.closing(open_source(options.input, kind, config.server.max_body_bytes)))
    if source.columns is not None:
        rows.check_columns(source.columns)
    config = serving(config, task.name, defaults.get("model"))
    settings = {
        "task": task.name,
        "format": kind,
        "field": options.field,
        "id": options.id,
        "options": defaults,
        "models": [
            {"name": model.name, "source": model.source, "revision": model.revision, "dtype": model.dtype}
            for model in config.models
        ],
    }
    output = open_output(options.input, options.output, options.id, settings, options.overwrite)
    files.callback(output.close)
    return Job(task, rows, size, source, output, config)


def known_task(name: str) -> Task[Any]:
    """Errors: `ConfigError`."""
    try:
        return get_task(name)
    except UnknownRoute as error:
        raise ConfigError(error.message) from None


def read_options(text: str | None) -> dict[str, Any]:
    """Errors: `ConfigError`."""
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise ConfigError(f"--options: expected a JSON object, such as '{{\"top_k\": 3}}': {error}") from error


def read_batch(text: str | None) -> int:
    """Rows a group. Errors: `ConfigError`."""
    if text is None:
        return ROWS_A_GROUP
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= 100_000:
        raise ConfigError(f"--batch: expected a whole number from 1 to 100000, got {text!r}")
    return int(text[:9])


def serving(config: Config, task: str, wanted: str | None) -> Config:
    """The configuration with those models only that serve the task. Errors: `ConfigError`."""
    check_models(config.models)
    names = [model.name for model in config.models]
    if wanted is not None and wanted not in names:
        raise ConfigError(f"--options: no model is named {wanted!r}; {nearest(wanted, names)}")
    tasks = {model.name: _tasks(model) for model in config.models if wanted in (None, model.name)}
    able = tuple(model for model in config.models if task in tasks.get(model.name, ()))
    if not able:
        shown = "; ".join(f"{name} serves {', '.join(tasks[name])}" for name in tasks)
        raise ConfigError(f"no model serves {task}: {shown or 'none is configured'}; give one with --model")
    server = msgspec.structs.replace(config.server, max_queue_tokens=NO_LIMIT)  # the flow bounds what waits
    return msgspec.structs.replace(config, server=server, models=able)


def _tasks(model: ModelConfig) -> tuple[str, ...]:
    """The tasks that a model serves; its checkpoint is looked at only when the configuration does not say."""
    return (*model.tasks, "tokenize") if model.tasks else describe(model).tasks


class Job:
    """One run of the command: its parts, and their life from loading to the last line."""

    def __init__(self, task: Task[Any], rows: Rows, size: int, source: Source, output: Output, config: Config) -> None:
        self.output = output
        self._task, self._rows, self._size, self._source, self._config = task, rows, size, source, config
        self._progress = Progress(source.total, output.rows, output.errors)
        self._reader, self._writer = Aside("reader"), Aside("writer")
        self._flow: Flow[Answer] | None = None
        self._work: asyncio.Task[None] | None = None
        self._signal = ""

    async def execute(self) -> int:
        """Load, run every row, drain. Errors: `ConfigError`, `BrokenFile`, `BrokenPipeError`."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        runtime = create_runtime(self._config)
        runtime.stop = self.stop
        self._work = asyncio.create_task(self._run_on(runtime))
        await asyncio.wait([self._work])
        return self._end(runtime)

    def _on_signal(self, number: int) -> None:
        """End cleanly; the same signal once more ends the process at once."""
        self._signal = signal.Signals(number).name
        asyncio.get_running_loop().remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)
        self.stop()

    def stop(self) -> None:
        """Write what is done, drop what is not."""
        if self._flow is not None:
            self._flow.stop()
        elif self._work is not None:
            self._work.cancel()

    async def _run_on(self, runtime: Runtime) -> None:
        try:
            await runtime.engine.start()
            self.output.begin()
            answers = Answers(runtime.service, self._task)
            with self._progress.shown():
                await self._process(runtime, answers)
            if not self._signal and runtime.failure is None:
                self.output.finish()
            runtime.service.start_draining()
            await runtime.service.drained()
        finally:
            self._reader.close()
            self._writer.close()
            await asyncio.to_thread(runtime.engine.stop, self._config.server.drain_timeout_s)
            runtime.tokenizers.close()

    async def _process(self, runtime: Runtime, answers: Answers) -> None:
        max_input_bytes = BYTES_A_TOKEN * max(spec.max_length for spec in runtime.service.specs())
        max_batch_tokens = max(model.max_batch_tokens for model in self._config.models)
        max_bytes = runtime.engine.placement.workers * BATCHES_AHEAD * max_batch_tokens * BYTES_A_TOKEN
        self._flow = Flow(answers.of, self._write, lambda group: group.cost(max_input_bytes), max_bytes)
        await self._flow.process(self._groups())

    async def _groups(self) -> AsyncIterator[Group]:
        blocks = self._source.blocks(self.output.rows, self._rows.wanted())
        while (groups := await self._reader.call(self._next_groups, blocks)) is not None:
            for group in groups:
                yield group

    def _next_groups(self, blocks: Iterator[Block]) -> list[Group] | None:
        """The groups of the next block, None at the end."""
        block = next(blocks, None)
        if block is None:
            return None
        return list(grouped(map(self._rows.item, block.rows), self._size, block.position))

    async def _write(self, group: Group, answer: Answer) -> None:
        await self._writer.call(self.output.write, group.items, answer.outcomes)
        self._progress.advance(len(group.items), answer.errors, answer.tokens, group.position)

    def _end(self, runtime: Runtime) -> int:
        """Say how it ended. Returns the exit status."""
        if isinstance(runtime.failure, ConfigError):
            raise runtime.failure
        if runtime.failure is not None:
            say(f"device workers died repeatedly; {self._done()}")
            return 1
        assert self._work is not None
        if self._signal:
            say(f"stopped by {self._signal}; {self._done()}")
            return 1
        self._work.result()
        say(self._progress.summary())
        return 0

    def _done(self) -> str:
        rows = f"{self._progress.rows:,} rows are done"
        return f"{rows}, the same command goes on after them" if self.output.resumable else rows
