"""Turns the rows of a file into requests of a task, and puts those together that can ride in one request."""

import difflib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from padserve.cli.files import Row
from padserve.config.keys import nearest
from padserve.errors import BadEncoding, ConfigError, InvalidField, MalformedRequest, PadserveError
from padserve.http.body import BodyDecoder
from padserve.tasks.base import Task, TaskRequest

logger = logging.getLogger(__name__)
INPUTS = "inputs"
TEXT = "text"
LISTS = (INPUTS, "documents")
"""Fields whose list makes several results of one request."""
RESERVED = ("row", "result", "results", "error")
MAX_NOTES = 20
OVERHEAD_BYTES = 32
"""What a row weighs besides its text."""
encode_json = msgspec.json.Encoder(enc_hook=str).encode


@dataclass(frozen=True, slots=True)
class Item:
    """A row on its way. ``id``: what it passes through."""

    index: int
    request: TaskRequest | PadserveError
    id: Any
    size: int

    @property
    def many(self) -> bool:
        """Whether the row itself holds a list, so that it gets a list of results."""
        return any(isinstance(getattr(self.request, name, None), list) for name in LISTS)

    @property
    def alone(self) -> bool:
        """Whether its request can be joined with no other."""
        return self.many or (isinstance(self.request, TaskRequest) and not hasattr(self.request, INPUTS))


@dataclass(frozen=True, slots=True)
class Group:
    """Consecutive rows that go through the service together. ``position``: how far the file was read for them."""

    items: list[Item]
    position: int

    def cost(self, max_input_bytes: int) -> int:
        """Bytes, for the bound on what is under way; of one input the model takes no more than ``max_input_bytes``."""
        sizes = (item.size if item.many else min(item.size, max_input_bytes) for item in self.items)
        return sum(sizes) + OVERHEAD_BYTES * len(self.items)


class Rows:
    """How the rows of one run become requests. ``texts``: cells are strings (CSV), of whatever their field holds.

    The input is the row's ``field``, else its ``inputs``, else the parts of one (``source`` and ``sentences``), else
    its ``text``. Other fields of the request may stand in the row, and win over ``options``.
    """

    def __init__(
        self, task: Task[Any], options: Mapping[str, Any], field: str | None, id_field: str | None, texts: bool
    ) -> None:
        fields = {info.encode_name: info for info in msgspec.structs.fields(task.request_type)}
        self._task, self._field, self._id_field, self._texts = task, field, id_field, texts
        self._types = {name: info.type for name, info in fields.items()}
        self._options = {"priority": "bulk", **checked_options(task, self._types, options)}
        self._decoder = BodyDecoder(task.request_type)
        missing = [name for name, info in fields.items() if info.required and name not in self._options]
        only = missing[0] if len(missing) == 1 else None
        self.input = INPUTS if INPUTS in fields else only
        self._parts = _parts(self._types.get(INPUTS))
        self._noted: set[str] = set()
        self._check_flags(missing)

    def _check_flags(self, missing: list[str]) -> None:
        if self._field is not None and self.input is None:
            need = " and ".join(missing) or "nothing but options"
            raise ConfigError(f"--field: a row of /{self._task.name} has {need}; give one of them in --options")
        if self._id_field in RESERVED:
            raise ConfigError(f"--id {self._id_field!r}: the output has a field of this name; rename the column")

    def check_columns(self, columns: Collection[str]) -> None:
        """Errors: `ConfigError` for a file whose header lacks the field of the input or of the id."""
        for flag, name in (("--field", self._field), ("--id", self._id_field)):
            if name is not None and name not in columns:
                raise ConfigError(f"{flag} {name!r}: there is no such column; {nearest(name, columns)}")
        if self._field is None and self.input is not None and self._sources(columns) is None:
            shown = ", ".join(columns)
            raise ConfigError(f"no column is named {self._expected()}; name one of {shown} with --field")

    def wanted(self) -> set[str]:
        """The columns that a row is made of."""
        given = {self._field, self._id_field, self.input, TEXT}
        return {*self._types, *self._parts, *(name for name in given if name is not None)}

    def item(self, row: Row) -> Item:
        record = row.record
        own = record.get(self._id_field) if isinstance(record, dict) and self._id_field is not None else None
        if isinstance(own, str):
            own = own.encode(errors="replace").decode()
        try:
            return Item(row.index, self.request(record), own, row.size)
        except PadserveError as error:
            return Item(row.index, error, own, row.size)

    def request(self, record: Any) -> TaskRequest:
        """Errors: `PadserveError`, with the codes that the server gives."""
        if isinstance(record, PadserveError):
            raise record
        if isinstance(record, str) and self.input is not None:
            fields = {self.input: record}
        elif isinstance(record, dict):
            fields = self._fields(record)
        else:
            wanted = "an object" if self.input is None else "an object or a string"
            raise InvalidField(f"a row is {wanted}, not {_kind(record)}")
        try:
            request: TaskRequest = self._decoder.decode(encode_json(self._options | fields))
        except UnicodeEncodeError:
            raise BadEncoding("the row is not valid UTF-8") from None
        except RecursionError:
            raise MalformedRequest("the row is nested too deeply") from None
        return request

    def _fields(self, record: dict[str, Any]) -> dict[str, Any]:
        """Request fields of a row."""
        sources = self._sources(record) if self.input is not None else ()
        if sources is None:
            raise InvalidField(f"the row has no field {self._expected()}", field=self._field or self.input)
        rest = {name: value for name, value in record.items() if name not in sources}
        fields = {
            name: self._cell(value, self._types[name])
            for name, value in rest.items()
            if name in self._types and name != self.input and not self._absent(value)
        }
        self._note(name for name in rest if name not in fields and not self._absent(record[name]))
        if self.input is not None:
            fields[self.input] = self._input(record, sources)
        return fields

    def _sources(self, names: Collection[str]) -> tuple[str, ...] | None:
        """Which of the names the input is made of, None when there is nothing to make it of."""
        if self._field is not None:
            return (self._field,) if self._field in names else None
        if self.input in names:
            return (self.input,) if self.input is not None else None
        required = [name for name, info in self._parts.items() if info.required]
        if required and all(name in names for name in required):
            return tuple(name for name in self._parts if name in names)
        return (TEXT,) if TEXT in names else None

    def _input(self, record: dict[str, Any], sources: tuple[str, ...]) -> Any:
        if self._field is None and self.input not in sources and sources[0] in self._parts:
            return {
                name: self._cell(record[name], self._parts[name].type)
                for name in sources
                if self._parts[name].required or not self._absent(record[name])
            }
        value = record[sources[0]]
        return self._cell(value, self._types[self.input or INPUTS], is_input=self.input == INPUTS)

    def _expected(self) -> str:
        if self._field is not None:
            return repr(self._field)
        parts = [name for name, info in self._parts.items() if info.required and name != TEXT]
        names = [repr(self.input), *([" and ".join(map(repr, parts))] if parts else []), repr(TEXT)]
        return " or ".join(names)

    def _absent(self, value: Any) -> bool:
        return self._texts and value == ""

    def _cell(self, value: Any, kind: Any, is_input: bool = False) -> Any:
        """What a cell holds: text where its field takes text, else JSON; lists are JSON unless it is the input."""
        if not self._texts:
            return value
        readings: list[Callable[[str], Any]] = (
            [_json, str] if value[:1] in ("[", "{") and not is_input else [str, _json]
        )
        for read in readings:
            try:
                found = read(value)
                msgspec.convert(found, kind)
            except (ValueError, RecursionError):
                continue
            return found
        return value

    def _note(self, names: Iterable[str]) -> None:
        """Say once of every column that it is not used."""
        for name in names:
            if name == self._id_field or name in self._noted or len(self._noted) == MAX_NOTES:
                continue
            self._noted.add(name)
            close = difflib.get_close_matches(name, self._types, n=1, cutoff=0.7)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            logger.warning("the field %r of a row is not used%s", name, hint)


def checked_options(task: Task[Any], types: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options, if the task's requests have such fields and these take the values. Errors: `ConfigError`."""
    for name, value in options.items():
        if name == INPUTS:
            raise ConfigError("--options: the inputs are the rows of the file")
        if name not in types:
            raise ConfigError(f"--options: /{task.name} has no field {name!r}; {nearest(name, types)}")
        try:
            msgspec.convert(value, types[name])
        except msgspec.ValidationError as error:
            raise ConfigError(f"--options: {name}: {error}") from error
    return options


def grouped(items: Iterable[Item], size: int, position: int) -> Iterator[Group]:
    """Consecutive rows with one input each and the same other fields, at most ``size`` of them; others alone."""
    group: list[Item] = []
    shared: TaskRequest | None = None
    for item in items:
        shape = shape_of(item)
        fits = shape is None or shared is None or shape == shared
        if group and (not fits or len(group) == size or item.alone or group[-1].alone):
            yield Group(group, position)
            group, shared = [], None
        group.append(item)
        shared = shape or shared
    if group:
        yield Group(group, position)


def shape_of(item: Item) -> TaskRequest | None:
    """A request without its input, None for a row that has no request."""
    if isinstance(item.request, PadserveError) or item.alone:
        return None
    return msgspec.structs.replace(item.request, **{INPUTS: None})


def together(requests: list[TaskRequest]) -> TaskRequest:
    """One request of several of the same shape."""
    inputs = [request.inputs for request in requests]  # type: ignore[attr-defined]
    return msgspec.structs.replace(requests[0], **{INPUTS: inputs})


def _parts(kind: Any) -> dict[str, Any]:
    """Fields of the object that an input may be, such as the two texts of a pair."""
    for option in get_args(kind):
        if isinstance(option, type) and issubclass(option, msgspec.Struct):
            return {info.encode_name: info for info in msgspec.structs.fields(option)}
    return {}


def _json(text: str) -> Any:
    return msgspec.json.decode(text)


def _kind(value: Any) -> str:
    names = {list: "a list", bool: "true or false", int: "a number", float: "a number", type(None): "null"}
    return names.get(type(value), "a string")
