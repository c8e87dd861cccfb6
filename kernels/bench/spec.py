"""What a benchmark of one op is made of, and where the specs are.

``specs/<op>.py`` holds ``SPEC``. It imports the op when a case is prepared, not before, so that a spec may stand here
before its op does.
"""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

Shape = dict[str, int | str]
"""The sizes of one case, as they are written into the results."""
OURS = "padserve"


def unchanged(result: Tensor) -> Tensor:
    """The layout of a contender whose result is already the op's."""
    return result


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to compute an op: ``call`` is what is timed, ``layout`` turns its result into the op's own layout."""

    call: Callable[[], Tensor]
    layout: Callable[[Tensor], Tensor] = unchanged


def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`torch.compile` with the shapes as they are."""
    return torch.compile(function, dynamic=False)


def plain_and_compiled(function: Callable[[], Tensor], device: torch.device) -> dict[str, Contender]:
    """Torch's own operators one by one, and, on a GPU, fused by `torch.compile`."""
    contenders = {"torch": Contender(function)}
    if device.type == "cuda":
        contenders["torch_compile"] = Contender(compiled(function))
    return contenders


@dataclass(frozen=True, slots=True)
class Case:
    """One op at one shape: its definition, which nobody times, and the contenders, `OURS` first."""

    definition: Callable[[], Tensor]
    contenders: dict[str, Contender]


@dataclass(frozen=True, slots=True)
class Spec:
    """``prepare(shape, dtype, device)`` makes inputs and everything that is not to be timed: masks, padding, tables.

    Contenders that cannot run on the device or with the dtype, or whose package is missing, are left out.
    ``tiny``: a shape for tests.
    """

    shapes: tuple[Shape, ...]
    tiny: Shape
    prepare: Callable[[Shape, torch.dtype, torch.device], Case]


def op_names() -> list[str]:
    """Every op with a spec, and whose package is there."""
    specs = sorted(path.stem for path in (Path(__file__).parent / "specs").glob("*.py"))
    return [op for op in specs if importlib.util.find_spec(f"padserve_kernels.{op}") is not None]


def load_spec(op: str) -> Spec:
    """The spec of one op. Errors: `ModuleNotFoundError` on a name without one."""
    spec: Spec = importlib.import_module(f"bench.specs.{op}").SPEC
    return spec
