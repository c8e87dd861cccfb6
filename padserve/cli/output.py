"""The output of a run, one JSON line a row in the input's order, and going on with one that was broken off.

Beside ``out.jsonl`` stands ``out.jsonl.run.json``: which input, by its size and SHA-256, and which settings the rows
come from. A line is whole once its newline is there, so the rows done are the whole lines; a torn last one is cut.
"""

import contextlib
import fcntl
import hashlib
import os
import stat
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from padserve.cli.answers import Outcome
from padserve.cli.files import STANDARD, BrokenFile, is_stream
from padserve.cli.rows import Item
from padserve.errors import ConfigError

SUFFIX = ".run.json"
VERSION = 1
ADVICE = "give another --output, or --overwrite to start anew"
encode_line = msgspec.json.Encoder().encode


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The file beside the output. ``settings``: what the rows depend on; ``rows``: how many, once all are done."""

    version: int
    input: dict[str, Any]
    settings: dict[str, Any]
    rows: int | None = None


class Line(msgspec.Struct, frozen=True):
    """What is looked at of a line that was written before."""

    row: int
    error: dict[str, str] | None = None


class Output:
    """``rows``: how many are done; ``errors``: how many of these are errors; ``finished``: nothing is left to do."""

    def __init__(self, path: str, descriptor: int, id_field: str | None, record: Record | None) -> None:
        self.path, self.rows, self.errors, self.finished = path, 0, 0, False
        self._descriptor, self._id_field, self._record = descriptor, id_field, record
        self._size = 0

    @property
    def resumable(self) -> bool:
        return self._record is not None and "sha256" in self._record.input

    def resume(self, overwrite: bool) -> None:
        """Find out what is done already; nothing is changed yet. Errors: `ConfigError` if it is another run's."""
        if self._record is None or overwrite or os.fstat(self._descriptor).st_size == 0:
            return
        known = self._check_belongs(self._record)
        self._count_lines()
        self.finished = known.rows is not None and known.rows == self.rows

    def _check_belongs(self, record: Record) -> Record:
        try:
            known = msgspec.json.decode(Path(self.path + SUFFIX).read_bytes(), type=Record)
        except FileNotFoundError:
            raise ConfigError(f"--output {self.path!r}: it was not begun by this command; {ADVICE}") from None
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(f"--output {self.path!r}: cannot read {self.path + SUFFIX!r}: {error}") from error
        if known.version != record.version:
            raise ConfigError(f"--output {self.path!r}: another version of padserve began it; {ADVICE}")
        if known.input != record.input:
            raise ConfigError(f"--output {self.path!r}: it belongs to another input; {ADVICE}")
        for key, value in record.settings.items():
            if known.settings.get(key) != value:
                was = _shown(known.settings.get(key))
                raise ConfigError(
                    f"--output {self.path!r}: it was begun with {key} {was}, now {_shown(value)}; give the same, or "
                    f"{ADVICE.removeprefix('give ')}"
                )
        return known

    def _count_lines(self) -> None:
        decoder = msgspec.json.Decoder(Line)
        with open(self._descriptor, "rb", closefd=False) as file:
            file.seek(0)
            for text in file:
                if not text.endswith(b"\n"):
                    break
                self._count_line(decoder, text)
                self._size += len(text)

    def _count_line(self, decoder: "msgspec.json.Decoder[Line]", text: bytes) -> None:
        with contextlib.suppress(msgspec.MsgspecError):
            line = decoder.decode(text)
            if line.row == self.rows:
                self.rows += 1
                self.errors += line.error is not None
                return
        raise ConfigError(f"--output {self.path!r}: line {self.rows + 1} is not row {self.rows} of a run; {ADVICE}")

    def begin(self) -> None:
        """Cut what is no whole line, and write down what the rows come from. Errors: `BrokenFile`."""
        if self._record is None:
            return
        with self._writing():
            os.ftruncate(self._descriptor, self._size)
            os.lseek(self._descriptor, 0, os.SEEK_END)
        self._note(self._record)

    def write(self, items: Sequence[Item], outcomes: Iterable[Outcome]) -> None:
        """Append a line a row; they are in the file when it returns. Errors: `BrokenFile`, `BrokenPipeError`."""
        lines = [encode_line(self._line(item, outcome)) for item, outcome in zip(items, outcomes, strict=True)]
        data = memoryview(b"\n".join(lines) + b"\n")
        with self._writing():
            while data:
                data = data[os.write(self._descriptor, data) :]
        self.rows += len(lines)

    def _line(self, item: Item, outcome: Outcome) -> dict[str, Any]:
        own = {} if self._id_field is None else {self._id_field: item.id}
        return {"row": item.index, **own, **outcome}

    def finish(self) -> None:
        """Write down that all rows are done. Errors: `BrokenFile`."""
        if self._record is None:
            return
        with self._writing():
            os.fsync(self._descriptor)
        self._note(msgspec.structs.replace(self._record, rows=self.rows))

    def close(self) -> None:
        os.close(self._descriptor)

    def _note(self, record: Record) -> None:
        path = self.path + SUFFIX
        with self._writing():
            Path(path + ".new").write_bytes(msgspec.json.format(msgspec.json.encode(record)) + b"\n")
            Path(path + ".new").replace(path)

    @contextlib.contextmanager
    def _writing(self) -> Any:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            raise BrokenFile(f"cannot write {self.path!r}: {error.strerror}") from error


def open_output(source: str, path: str, id_field: str | None, settings: dict[str, Any], overwrite: bool) -> Output:
    """The output, and where to go on in it. Errors: `ConfigError`."""
    if path == STANDARD:
        return Output(path, os.dup(sys.stdout.fileno()), id_field, None)
    if os.path.exists(path) and source != STANDARD and os.path.samefile(source, path):
        raise ConfigError(f"--output {path!r}: it is the input; give another name")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise ConfigError(f"--output {path!r}: cannot be written: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return Output(path, descriptor, id_field, None)
        _lock(descriptor, path)
        if is_stream(source) and os.fstat(descriptor).st_size and not overwrite:
            raise ConfigError(f"--output {path!r}: it holds rows, and a stream as input cannot be resumed; {ADVICE}")
        output = Output(path, descriptor, id_field, Record(version=VERSION, input=_identity(source), settings=settings))
        output.resume(overwrite)
    except ConfigError:
        os.close(descriptor)
        raise
    return output


def _lock(descriptor: int, path: str) -> None:
    """Held until the process ends, however it ends. File systems without locks go without."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(f"--output {path!r}: another run is writing it") from None
    except OSError:
        return


def _identity(path: str) -> dict[str, Any]:
    """Tells an input from every other one; a stream is like no other."""
    if is_stream(path):
        return {"stream": os.urandom(16).hex()}
    try:
        with Path(path).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return {"bytes": os.fstat(file.fileno()).st_size, "sha256": digest}
    except OSError as error:
        raise ConfigError(f"--input {path!r}: cannot be read: {error.strerror}") from error


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 100 else f"{text[:97]}..."
