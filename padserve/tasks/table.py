"""The tasks: name -> module and class. A task is one file beside this one and one line here."""

from functools import cache
from importlib import import_module
from typing import Any

from padserve.errors import UnknownRoute
from padserve.tasks.base import Task

TASKS: dict[str, tuple[str, str]] = {
    "fill-mask": ("fill_mask", "FillMask"),
    "classify": ("classify", "Classify"),
    "zero-shot": ("zero_shot", "ZeroShot"),
    "token-classify": ("token_classify", "TokenClassify"),
    "embed": ("embed", "Embed"),
    "rerank": ("rerank", "Rerank"),
    "similarity": ("similarity", "Similarity"),
    "tokenize": ("tokenize", "Tokenize"),
    "generate": ("generate", "Generate"),
    "translate": ("translate", "Translate"),
    "summarize": ("summarize", "Summarize"),
}


@cache
def get_task(name: str) -> Task[Any]:
    """The task of a name. Errors: `UnknownRoute` lists the known ones."""
    if name not in TASKS:
        raise UnknownRoute(f"no task is named {name!r}; known are {', '.join(TASKS)}")
    module, attribute = TASKS[name]
    task: Task[Any] = getattr(import_module(f"padserve.tasks.{module}"), attribute)()
    return task


def all_tasks() -> tuple[Task[Any], ...]:
    return tuple(get_task(name) for name in TASKS)
