"""Values of keys: strings of the environment and of flags become numbers; all are checked against the Structs."""

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from padserve.config.structs import Config, ModelConfig, ServerConfig, SpeculationConfig
from padserve.errors import ConfigError


def typed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Strings, as the environment and flags give them, become what the key is. The file's values have their types."""
    types = {**_default_types(ServerConfig), **_default_types(ModelConfig)}
    return {
        key: _number(key, value, types[key]) if isinstance(value, str) and types.get(key) in (int, float) else value
        for key, value in given.items()
    }


def _default_types(struct: type[msgspec.Struct]) -> dict[str, type]:
    """The type of each key's default."""
    defaults = struct.__struct_defaults__
    return {key: type(value) for key, value in zip(struct.__struct_fields__[-len(defaults) :], defaults, strict=True)}


def _number(key: str, value: str, kind: type) -> float:
    try:
        return kind(value)  # type: ignore[no-any-return]
    except ValueError as error:
        expected = "a whole number" if kind is int else "a number"
        raise ConfigError(f"{key}: expected {expected}, got {_shown(value)}") from error


def convert(data: dict[str, Any]) -> Config:
    """Errors: `ConfigError` with the place, what was expected there and what stands there."""
    try:
        return msgspec.convert(data, Config)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$.")
        place = place.rstrip("`")
        raise ConfigError(f"{place or 'configuration'}: {message}{_hint(message, data, place)}") from error


def _hint(message: str, data: Any, place: str) -> str:
    if message.startswith("Invalid enum value"):
        return _choices(place.rpartition(".")[2])
    if not message.startswith("Expected"):
        return ""
    for part in re.findall(r"[^.\[\]]+", place):
        data = data[int(part) if isinstance(data, list) else part]
    return f"; it is {_shown(data)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _choices(key: str) -> str:
    """The values that a key of few values can have."""
    for struct in (ServerConfig, ModelConfig, SpeculationConfig):
        hint = get_type_hints(struct).get(key)
        if get_origin(hint) is Literal:
            return f"; choose from {', '.join(value for value in get_args(hint) if value)}"
    return ""
