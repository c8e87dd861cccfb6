"""Reads the rows of JSONL, CSV and Parquet files as a stream, from any row on. Blank lines are no rows."""

import csv
import io
import itertools
import os
import stat
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from padserve.errors import BodyTooLarge, ConfigError, InvalidField, PadserveError
from padserve.http.body import BYTE_ORDER_MARK, BodyDecoder

STANDARD = "-"
FORMATS = {
    "jsonl": ("jsonl", "ndjson"),
    "csv": ("csv",),
    "parquet": ("parquet", "pq"),
}
"""Format to the endings of the names of its files."""
READ_BYTES = 65_536
ROWS_A_BLOCK = 256
MAX_CELL = 2**26
"""Characters; what is longer is the rest of a file after a quote that nothing closes."""


class BrokenFile(Exception):
    """A file that cannot be read or written any further: the run fails, what was written stands."""


@dataclass(frozen=True, slots=True)
class Row:
    """``record``: what the row holds, or why it cannot be read. ``size``: bytes, roughly."""

    index: int
    record: Any
    size: int


@dataclass(frozen=True, slots=True)
class Block:
    """Rows that were read at once, and how far the file has been read, in the units of `Source.total`."""

    rows: list[Row]
    position: int


class Source(Protocol):
    """``columns``: None where every row has its own. ``total``: bytes or rows, None for a stream."""

    columns: tuple[str, ...] | None
    total: int | None

    def blocks(self, first: int, wanted: Collection[str]) -> Iterator[Block]:
        """Rows from ``first`` on; columns that are not ``wanted`` may be left out. Errors: `BrokenFile`."""
        ...

    def close(self) -> None:
        """Close the file, without waiting for a thread that reads it."""
        ...


def format_of(path: str, given: str | None) -> str:
    """The format of a file, from its name unless given. Errors: `ConfigError`."""
    if given is not None:
        if given not in FORMATS:
            raise ConfigError(f"--format {given!r}: there is no such format; choose from {', '.join(FORMATS)}")
        if given == "parquet" and path == STANDARD:
            raise ConfigError("--format parquet: Parquet cannot be read from standard input; give a file")
        return given
    if path == STANDARD:
        return "jsonl"
    ending = path.rpartition(".")[2].lower()
    for name, endings in FORMATS.items():
        if ending in endings:
            return name
    raise ConfigError(f"--input {path!r}: its name does not tell its format; give --format {' or '.join(FORMATS)}")


def is_stream(path: str) -> bool:
    """Whether it is standard input or output, a pipe or a device: what can be neither read nor written twice."""
    if path == STANDARD:
        return True
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


def open_source(path: str, kind: str, max_row_bytes: int) -> Source:
    """Errors: `ConfigError` for a file that is missing or not of this format."""
    try:
        # Unbuffered: a thread that waits for more of a stream then holds no lock that closing and exit wait for.
        file = io.FileIO(os.dup(sys.stdin.fileno()) if path == STANDARD else path)
    except OSError as error:
        raise ConfigError(f"--input {path!r}: cannot be read: {error.strerror}") from error
    total = None if is_stream(path) else os.fstat(file.fileno()).st_size
    try:
        if kind == "parquet":
            return ParquetSource(path, file)
        return CsvSource(path, file, total) if kind == "csv" else JsonlSource(path, file, total, max_row_bytes)
    except ConfigError:
        file.close()
        raise


class Anything(msgspec.Struct):
    """Stands in where only the JSON itself is looked at."""


class JsonlSource:
    """``max_row_bytes``: a longer line is an error in its place, and is never held whole."""

    def __init__(self, path: str, file: io.FileIO, total: int | None, max_row_bytes: int) -> None:
        self.columns: tuple[str, ...] | None = None
        self.total = total
        self._path, self._raw, self._max_bytes = path, file, max_row_bytes
        self._errors = BodyDecoder(Anything)

    def blocks(self, first: int, wanted: Collection[str]) -> Iterator[Block]:
        start = 0
        for lines, position in self._lines():
            ours = [line for line in lines if line and not line.isspace()]
            skipped = min(max(first - start, 0), len(ours))
            rows = [
                Row(start + place, self._record(line), len(line))
                for place, line in enumerate(ours[skipped:], start=skipped)
            ]
            start += len(ours)
            yield Block(rows, position)

    def close(self) -> None:
        self._raw.close()

    def _lines(self) -> Iterator[tuple[list[bytes], int]]:
        """The lines that end in what one read gives, and how many bytes have been read. Long ones are cut."""
        keep = self._max_bytes + 1
        rest, position = b"", 0
        while chunk := self._read():
            data = chunk.removeprefix(BYTE_ORDER_MARK) if position == 0 else chunk
            position += len(chunk)
            head, *others = data.split(b"\n")
            lines = [(rest + head)[:keep], *others]
            rest = lines.pop()
            yield lines, position
        yield [rest], position

    def _read(self) -> bytes:
        try:
            return self._raw.read(READ_BYTES) or b""
        except OSError as error:
            raise BrokenFile(f"cannot read {self._path!r}: {error.strerror}") from error

    def _record(self, line: bytes) -> Any:
        if len(line) > self._max_bytes:
            return BodyTooLarge(f"the line is longer than {self._max_bytes} bytes; raise --max-body-bytes")
        try:
            return msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError):
            return self._problem(line)

    def _problem(self, line: bytes) -> PadserveError:
        """What the server would say of such a body."""
        try:
            self._errors.decode(line)
        except PadserveError as error:
            return type(error)(error.message.replace("the body", "the line"))
        raise AssertionError("a line that cannot be decoded was decoded")


class CsvSource:
    """The first record names the columns. Bytes that are no UTF-8 become lone surrogates, an error of their row."""

    def __init__(self, path: str, file: io.FileIO, total: int | None) -> None:
        csv.field_size_limit(MAX_CELL)
        self.total = total
        self._path, self._raw = path, file
        text = io.TextIOWrapper(io.BufferedReader(file), encoding="utf-8-sig", errors="surrogateescape", newline="")
        self._reader = csv.reader(text)
        try:
            header = tuple(next(self._records(), ()))
        except BrokenFile as error:
            raise ConfigError(str(error)) from error
        twice = [name for name in header if header.count(name) > 1]
        if not header or twice:
            what = f"names the column {twice[0]!r} twice" if twice else "is missing: the file is empty"
            raise ConfigError(f"--input {path!r}: the CSV header {what}")
        self.columns: tuple[str, ...] | None = header

    def blocks(self, first: int, wanted: Collection[str]) -> Iterator[Block]:
        records = enumerate(self._records())
        kept = itertools.islice(records, first, None)
        while block := list(itertools.islice(kept, ROWS_A_BLOCK)):
            rows = [Row(index, self._record(cells), sum(map(len, cells))) for index, cells in block]
            yield Block(rows, 0 if self.total is None else self._raw.tell())

    def close(self) -> None:
        self._raw.close()

    def _records(self) -> Iterator[list[str]]:
        try:
            yield from filter(None, self._reader)
        except csv.Error as error:
            raise BrokenFile(f"{self._path!r}, line {self._reader.line_num}: not valid CSV: {error}") from error
        except OSError as error:
            raise BrokenFile(f"cannot read {self._path!r}: {error.strerror}") from error

    def _record(self, cells: list[str]) -> dict[str, str] | InvalidField:
        header = self.columns or ()
        if len(cells) > len(header):
            return InvalidField(f"the row has {len(cells)} cells, the header {len(header)}")
        return dict(zip(header, cells, strict=False))


class ParquetSource:
    """Read by row groups; those that hold nothing wanted are not touched. A null is an absent field."""

    def __init__(self, path: str, file: io.FileIO) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise ConfigError("Parquet needs the package pyarrow: pip install 'padserve[batch]'") from error
        try:
            self._file = pyarrow.parquet.ParquetFile(io.BufferedReader(file))
        except (pyarrow.ArrowException, OSError) as error:
            raise ConfigError(f"--input {path!r}: not a Parquet file: {_one_line(error)}") from error
        self._failures = (pyarrow.ArrowException, OSError)
        self._path, self._raw = path, file
        self.columns: tuple[str, ...] | None = tuple(self._file.schema_arrow.names)
        self.total: int | None = self._file.metadata.num_rows

    def blocks(self, first: int, wanted: Collection[str]) -> Iterator[Block]:
        groups, start = self._groups_from(first)
        columns = [name for name in self.columns or () if name in wanted]
        try:
            for batch in self._file.iter_batches(ROWS_A_BLOCK, groups, columns):
                kept = batch.slice(min(max(first - start, 0), batch.num_rows))
                start += batch.num_rows
                at, size = start - kept.num_rows, kept.nbytes // max(kept.num_rows, 1)
                rows = [Row(at + place, _present(record), size) for place, record in enumerate(kept.to_pylist())]
                yield Block(rows, start)
        except self._failures as error:
            raise BrokenFile(f"cannot read {self._path!r}: {_one_line(error)}") from error

    def close(self) -> None:
        self._file.close()
        self._raw.close()

    def _groups_from(self, first: int) -> tuple[list[int], int]:
        """The row groups from the one that holds row ``first`` on, and the index of their first row."""
        metadata, start = self._file.metadata, 0
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group).num_rows
            if first < start + rows:
                return list(range(group, metadata.num_row_groups)), start
            start += rows
        return [], start


def _present(record: dict[str, Any]) -> dict[str, Any]:
    """The fields that are not null; bytes are what old writers made of text."""
    return {
        name: value.decode(errors="surrogateescape") if isinstance(value, bytes) else value
        for name, value in record.items()
        if value is not None
    }


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
