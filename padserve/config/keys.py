"""Names of keys: the valid ones, and the nearest to one that is not."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from padserve.config.structs import Config, ModelConfig, ServerConfig
from padserve.errors import ConfigError

LATER = ("generation", "cache", "speculation")
MODEL_WIDE = ("dtype", "batching", "max_batch_tokens", "max_wait_ms")
"""Keys of a model that the environment and flags set for all models at once."""


def field_names(struct: type[msgspec.Struct]) -> tuple[str, ...]:
    return struct.__struct_fields__


def nearest(name: str, known: Iterable[str]) -> str:
    """``did you mean …``, or the list of what is known."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"


def check_keys(data: Mapping[str, Any]) -> None:
    """Errors: `ConfigError` for a key that no Struct has, with the nearest valid one."""
    _check(data, field_names(Config), "")
    server = data.get("server", {})
    if isinstance(server, Mapping):
        _check(server, field_names(ServerConfig), "server.")
    models = data.get("models", [])
    for index, model in enumerate(models if isinstance(models, list) else []):
        if isinstance(model, Mapping):
            _check_model(model, f"models[{index}].")


def _check_model(model: Mapping[str, Any], path: str) -> None:
    for key in LATER:
        if key in model:
            raise ConfigError(f"{path}{key}: this version serves encoders only; generating models come later")
    _check(model, field_names(ModelConfig), path)


def _check(data: Mapping[str, Any], known: Iterable[str], path: str) -> None:
    for key in data:
        if key not in known:
            raise ConfigError(f"{path}{key}: unknown key; {nearest(path + key, [path + name for name in known])}")
