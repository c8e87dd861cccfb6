"""The adapters: name -> module and class. An adapter is one file beside this one and one line here."""

from collections.abc import Iterable
from importlib import import_module

from padserve.http.adapters.base import Adapter

ADAPTERS: dict[str, tuple[str, str]] = {
    "openai": ("openai", "OpenAI"),
    "completions": ("completions", "Completions"),
    "chat": ("chat", "Chat"),
    "rerank": ("rerank", "Rerank"),
    "tei": ("tei", "Tei"),
    "kserve": ("kserve", "Kserve"),
    "libretranslate": ("libretranslate", "LibreTranslate"),
}


def adapters_for(tasks: Iterable[str]) -> list[Adapter]:
    """The adapters whose tasks are all among these."""
    given = frozenset(tasks)
    made: list[Adapter] = [
        getattr(import_module(f"padserve.http.adapters.{module}"), kind)() for module, kind in ADAPTERS.values()
    ]
    return [adapter for adapter in made if adapter.tasks <= given]
