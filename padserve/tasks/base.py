"""What a task is: how it turns a request into sequences, and their outputs into results.

    plan(request, spec, tokenizer)  -> Plan      in a tokenizer thread
    finish(request, spec, plan, outputs) -> results    in a tokenizer thread, after the model has run

A task is one file and one line in ``table.py``. It imports no HTTP and never sees the queue.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import msgspec

from padserve.core import Encoding, Head, ModelSpec, Output
from padserve.errors import EmptyInput, EmptyInputs, PadserveError
from padserve.text.tokenizer import Tokenizer


class TaskRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that every native route takes."""

    model: str | None = None
    truncate: bool = False
    truncation_side: Literal["right", "left"] = "right"
    priority: Literal["interactive", "bulk"] = "interactive"
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=86_400_000)] | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What every entry of ``results`` has: whether its input was cut."""

    truncated: bool

    @property
    def input_tokens(self) -> int:
        """Tokens of the input that ran."""
        raise NotImplementedError


class TaskResult(Result, frozen=True, kw_only=True):
    """An entry of a task that runs a model: also the input tokens really run."""

    tokens: int

    @property
    def input_tokens(self) -> int:
        return self.tokens


class ItemProblem(msgspec.Struct, frozen=True):
    code: str
    message: str


class ItemError(msgspec.Struct, frozen=True):
    """Stands in ``results`` for an input that could not be run while its neighbours could."""

    error: ItemProblem

    @classmethod
    def of(cls, error: PadserveError) -> "ItemError":
        return cls(error=ItemProblem(code=error.code, message=error.message))


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of a request that runs, or fails, by itself: usually one input. ``state`` is for the task's own use."""

    encodings: tuple[Encoding, ...]
    state: Any = None


@dataclass(frozen=True, slots=True)
class Plan:
    """One entry a unit; an error stands for a unit that cannot run."""

    units: Sequence[Unit | PadserveError]


@dataclass(frozen=True, slots=True)
class Finished:
    """``results``: one a unit that the client sees, in its order; an error where one failed.

    ``many``: the request had a list, so a failure is reported in its place. ``input_tokens``: summed over what ran.
    """

    results: Sequence[Result | PadserveError]
    many: bool


InputT = TypeVar("InputT")
RequestT = TypeVar("RequestT", bound=TaskRequest)


def as_list(inputs: InputT | list[InputT]) -> list[InputT]:
    """One input or several, as several. Errors: `EmptyInputs`."""
    return some(inputs) if isinstance(inputs, list) else [inputs]


def some(inputs: list[InputT]) -> list[InputT]:
    """The list. Errors: `EmptyInputs` when nothing is in it."""
    if not inputs:
        raise EmptyInputs("the list of inputs is empty; give at least one")
    return inputs


def plan_each(inputs: Sequence[InputT], unit: Callable[[InputT], Unit]) -> Plan:
    """A unit for each input; an input that cannot be one becomes its error."""
    units: list[Unit | PadserveError] = []
    for one in inputs:
        try:
            units.append(_checked(unit(one)))
        except PadserveError as error:
            units.append(error)
    return Plan(units)


def _checked(unit: Unit) -> Unit:
    if any(len(encoding) == 0 for encoding in unit.encodings):
        raise EmptyInput("the input has no tokens")
    return unit


def finish_each(
    plan: Plan,
    outputs: Sequence[Sequence[Output] | PadserveError],
    many: bool,
    result: Callable[[Unit, Sequence[Output]], Result],
) -> Finished:
    """A result for each unit, or its error."""
    results: list[Result | PadserveError] = []
    for unit, output in zip(plan.units, outputs, strict=True):
        if isinstance(unit, PadserveError):
            results.append(unit)
        elif isinstance(output, PadserveError):
            results.append(output)
        else:
            results.append(result(unit, output))
    return Finished(results, many)


class Task(Generic[RequestT]):
    """Base of all tasks. Stateless: one object serves every request of every model."""

    name: ClassVar[str]  # the route without its slash
    summary: ClassVar[str]  # one line for the API docs
    heads: ClassVar[frozenset[Head]]  # heads that can serve it (`supports` narrows)
    request_type: type[RequestT]
    result_type: type[Result]

    @classmethod
    def supports(cls, spec: ModelSpec) -> str | None:
        """None if the model can do this task, else the reason why it cannot, for an error message."""
        if spec.head in cls.heads:
            return None
        return f"/{cls.name} needs a model with a {' or '.join(sorted(cls.heads))} head; {spec.name!r} has {spec.head}"

    def plan(self, request: RequestT, spec: ModelSpec, tokenizer: Tokenizer) -> Plan:
        """Tokenize and cut. A request that is wrong as a whole raises; a wrong input becomes an error in its unit."""
        raise NotImplementedError

    def finish(
        self,
        request: RequestT,
        spec: ModelSpec,
        plan: Plan,
        outputs: Sequence[Sequence[Output] | PadserveError],
    ) -> Finished:
        """Turn outputs, one list a unit and one array an encoding, into results."""
        raise NotImplementedError
