"""Models as the command line gives them, and names for those that have none."""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from padserve.config.structs import ModelConfig
from padserve.errors import ConfigError


def models_from_flags(given: Sequence[str]) -> list[dict[str, Any]]:
    """``TASK[,TASK]=SOURCE`` or ``SOURCE``; the tasks given for one source are those of one model."""
    tasks: dict[str, list[str]] = {}
    for one in given:
        names, separator, source = one.partition("=")
        if not separator:
            names, source = "", one
        if not source:
            raise ConfigError(f"--model {one!r}: expected TASK=SOURCE or SOURCE")
        tasks.setdefault(source, []).extend(name.strip() for name in names.split(",") if name.strip())
    return [{"source": source, "tasks": list(dict.fromkeys(names))} for source, names in tasks.items()]


def named(models: Sequence[ModelConfig]) -> tuple[ModelConfig, ...]:
    """Give every model a name: its own, else the last part of its source, made unique by a number."""
    taken = {model.name for model in models if model.name}
    result = []
    for model in models:
        name = model.name
        if not name:
            base = PurePath(model.source.removeprefix("starter:")).name or "model"
            name = next(name for name in _numbered(base) if name not in taken)
            taken.add(name)
        result.append(msgspec.structs.replace(model, name=name))
    return tuple(result)


def _numbered(base: str) -> list[str]:
    return [base, *(f"{base}-{number}" for number in range(2, 1000))]
