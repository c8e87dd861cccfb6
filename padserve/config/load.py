"""Reads the configuration, once: file, overridden by environment, overridden by flags."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from padserve.config.keys import MODEL_WIDE, check_keys, field_names, nearest
from padserve.config.models import models_from_flags, named
from padserve.config.structs import Config, ModelConfig, ServerConfig
from padserve.errors import ConfigError
from padserve.starter.table import starter_models

PREFIX = "PADSERVE_"


def load_config(
    path: str | None,
    env: Mapping[str, str],
    flags: Mapping[str, Any] | None = None,
    models: Sequence[str] = (),
) -> Config:
    """``flags``: values by key, strings or typed. ``models``: ``TASK=SOURCE`` or ``SOURCE``.

    With no models anywhere, the starter set. Errors: `ConfigError`, one line.
    """
    path = path or env.get(PREFIX + "CONFIG")
    data = read_toml(path) if path else {}
    check_keys(data)
    overrides = {**read_environment(env), **{key: value for key, value in (flags or {}).items() if value is not None}}
    server = {**data.get("server", {}), **{k: v for k, v in overrides.items() if k in field_names(ServerConfig)}}
    wide = {key: value for key, value in overrides.items() if key in MODEL_WIDE}
    listed = models_from_flags(models) if models else data.get("models") or _starter()
    config = _convert({"server": server, "models": [{**model, **wide} for model in listed]})
    return _checked(msgspec.structs.replace(config, models=named(config.models)))


def _starter() -> list[dict[str, Any]]:
    return [dict(model) for model in starter_models()]


def read_toml(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path!r}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def read_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Values of ``PADSERVE_<KEY>`` and ``PADSERVE_SERVER_<KEY>``. Errors: `ConfigError` for an unknown one."""
    known = {name.upper(): name for name in (*field_names(ServerConfig), *MODEL_WIDE)}
    known |= {f"SERVER_{name.upper()}": name for name in field_names(ServerConfig)}
    found = {}
    for variable, value in env.items():
        if not variable.startswith(PREFIX) or variable == PREFIX + "CONFIG":
            continue
        name = known.get(variable.removeprefix(PREFIX))
        if name is None:
            hint = nearest(variable, [PREFIX + key for key in (*known, "CONFIG")])
            raise ConfigError(f"{variable}: unknown environment variable; {hint}")
        found[name] = value
    return found


def _convert(data: dict[str, Any]) -> Config:
    """Strings, as the environment and flags give them, become what the key is; TOML values stay strict."""
    types = {**_string_types(ServerConfig), **_string_types(ModelConfig)}
    for table in (data["server"], *data["models"]):
        for key, value in table.items():
            if isinstance(value, str) and types.get(key) in (int, float):
                table[key] = _number(key, value, types[key])
    try:
        return msgspec.convert(data, Config)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$.")
        place = place.rstrip("`")
        choices = _choices(place.rpartition(".")[2]) if message.startswith("Invalid enum value") else ""
        raise ConfigError(f"{place or 'configuration'}: {message}{choices}") from error


def _choices(key: str) -> str:
    """The values that a key of few values can have."""
    for struct in (ServerConfig, ModelConfig):
        hint = get_type_hints(struct).get(key)
        if get_origin(hint) is Literal:
            return f"; choose from {', '.join(value for value in get_args(hint) if value)}"
    return ""


def _string_types(struct: type[msgspec.Struct]) -> dict[str, type]:
    """The type of each key's default."""
    defaults = struct.__struct_defaults__
    return {key: type(value) for key, value in zip(field_names(struct)[-len(defaults) :], defaults, strict=True)}


def _number(key: str, value: str, kind: type) -> float:
    try:
        return kind(value)  # type: ignore[no-any-return]
    except ValueError as error:
        raise ConfigError(
            f"{key}: expected {'a whole number' if kind is int else 'a number'}, got {value!r}"
        ) from error


def _checked(config: Config) -> Config:
    for model in config.models:
        if model.dtype in ("int8", "auto", "float16"):
            raise ConfigError(f"models.{model.name}.dtype: {model.dtype} is not supported yet; use float32 or bfloat16")
    names = [model.name for model in config.models]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"models: the name {twice[0]!r} stands twice; names must differ")
    return config
