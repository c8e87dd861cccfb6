"""Names of keys: the valid ones, and the nearest to one that is not."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from padserve.config.structs import (
    CacheConfig,
    Config,
    GenerationConfig,
    ModelConfig,
    ServerConfig,
    SpeculationConfig,
)
from padserve.errors import ConfigError

TABLES: dict[str, type[msgspec.Struct]] = {
    "generation": GenerationConfig,
    "cache": CacheConfig,
    "speculation": SpeculationConfig,
}
"""Tables of a model."""
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
    _check(model, field_names(ModelConfig), path)
    for key, struct in TABLES.items():
        table = model.get(key, {})
        if not isinstance(table, Mapping):
            raise ConfigError(f"{path}{key}: expected one table; write [models.{key}] above its keys")
        _check(table, field_names(struct), f"{path}{key}.")


def _check(data: Mapping[str, Any], known: Iterable[str], path: str) -> None:
    for key in data:
        if key not in known:
            raise ConfigError(f"{path}{key}: unknown key; {nearest(key, known, path)}")
