"""Reads the configuration, once: file, overridden by environment, overridden by flags."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from padserve.config.keys import MODEL_WIDE, check_keys, field_names, nearest
from padserve.config.models import models_from_flags, named
from padserve.config.structs import Config, ServerConfig
from padserve.config.values import convert, typed
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
    given = {**read_environment(env), **{key: value for key, value in (flags or {}).items() if value is not None}}
    overrides = typed(given)
    server = {**data.get("server", {}), **{k: v for k, v in overrides.items() if k in field_names(ServerConfig)}}
    wide = {key: value for key, value in overrides.items() if key in MODEL_WIDE}
    listed = models_from_flags(models) if models else data.get("models") or _starter()
    config = convert({"server": server, "models": [{**model, **wide} for model in listed]})
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
            hint = nearest(variable.removeprefix(PREFIX), (*known, "CONFIG"), PREFIX)
            raise ConfigError(f"{variable}: unknown environment variable; {hint}")
        found[name] = value
    return found


def _checked(config: Config) -> Config:
    names = [model.name for model in config.models]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"models: the name {twice[0]!r} stands twice; names must differ")
    return config
