"""Names of keys: the valid ones, and the nearest to one that is not."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from padserve.config.structs import Config, ModelConfig, ServerConfig, SpeculationConfig
from padserve.errors import ConfigError

LATER = ("generation", "cache")
MODEL_WIDE = ("dtype", "batching", "max_batch_tokens", "max_wait_ms")
"""Keys of a model that the environment and flags set for all models at once."""


def field_names(struct: type[msgspec.Struct]) -> tuple[str, ...]:
    return struct.__struct_fields__


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """``did you mean …``, or the list of what is known; ``prefix`` is put before each, and is no part of the name."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {prefix}{close[0]}?" if close else f"known are {', '.join(prefix + key for key in known)}"


def check_keys(data: Mapping[str, Any]) -> None:
    """Errors: `ConfigError` for what is no table, and for a key that no Struct has, with the nearest valid one."""
    _check(data, field_names(Config), "")
    server = data.get("server", {})
    if not isinstance(server, Mapping):
        raise ConfigError("server: expected one table; write [server] above its keys")
    _check(server, field_names(ServerConfig), "server.")
    models = data.get("models", [])
    if not isinstance(models, list) or not all(isinstance(model, Mapping) for model in models):
        raise ConfigError("models: expected a list of tables; write [[models]] above the keys of each model")
    for index, model in enumerate(models):
        _check_model(model, f"models[{index}].")


def _check_model(model: Mapping[str, Any], path: str) -> None:
    for key in LATER:
        if key in model:
            raise ConfigError(f"{path}{key}: this version generates with its own settings; these tables come later")
    _check(model, field_names(ModelConfig), path)
    speculation = model.get("speculation")
    if isinstance(speculation, Mapping):
        _check(speculation, field_names(SpeculationConfig), f"{path}speculation.")


def _check(data: Mapping[str, Any], known: Iterable[str], path: str) -> None:
    for key in data:
        if key not in known:
            raise ConfigError(f"{path}{key}: unknown key; {nearest(key, known, path)}")
