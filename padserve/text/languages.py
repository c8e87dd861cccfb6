"""Languages: a model's own codes found from those that users give, and what a model does with a pair of them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from langcodes import Language, tag_distance
from langcodes.registry_parser import parse_registry
from langcodes.tag_parser import LanguageTagError

from padserve.errors import UnknownLanguage

SAME_LANGUAGE = 3
"""CLDR's distance up to which two tags of one script are one language: ``no`` and ``nb``, ``ar`` and ``arb``."""
ANYWHERE = (None, "XX")
Around = tuple[tuple[int, ...], tuple[int, ...]]
"""Special tokens before and after a text."""


class LanguageCodes:
    """A model's codes, found by themselves, by BCP 47 or ISO 639 (``fr``, ``fr-FR``, ``fra``), or by ``names``."""

    def __init__(self, codes: Iterable[str], names: Mapping[str, str] | None = None) -> None:
        self.codes = tuple(codes)
        self._own = {_plain(name): code for name, code in (names or {}).items()}
        self._own |= {_plain(code): code for code in self.codes}
        self._tags = {code: tag for code in self.codes if (tag := parsed(code)) is not None}
        self._nearest = lru_cache(maxsize=1024)(self._search)

    def find(self, wanted: str, field: str) -> str:
        """The model's code. ``field``: what the request calls it. Errors: `UnknownLanguage`."""
        found = self._own.get(_plain(wanted)) or self._nearest(wanted)
        if found is None:
            known = ", ".join(self.codes)
            message = f"{field}: the model does not have the language {wanted[:64]!r}; it has {known}"
            raise UnknownLanguage(message, field=field, languages=list(self.codes))
        return found

    def _search(self, wanted: str) -> str | None:
        """The nearest code of the same language and script; of several the one of the same region, else of none."""
        tag = parsed(wanted)
        if tag is None:
            return None
        region = tag.maximize().territory
        ranked = []
        for place, (code, own) in enumerate(self._tags.items()):
            distance = _distance(tag, own)
            if distance <= SAME_LANGUAGE:
                elsewhere = 0 if own.territory == region else 1 if own.territory in ANYWHERE else 2
                ranked.append((distance, elsewhere, place, code))
        return min(ranked)[-1] if ranked else None


def parsed(code: str) -> Language | None:
    """None for what is no language tag."""
    try:
        return Language.get(code)
    except LanguageTagError:
        return None


def same_language(first: str, second: str) -> bool:
    one, other = parsed(first), parsed(second)
    return one is not None and other is not None and _distance(one, other) <= SAME_LANGUAGE


def is_one_language(code: str) -> bool:
    """Not a group of them, such as ``roa``, ``mul`` or Marian's ``ROMANCE``."""
    tag = parsed(code)
    return tag is not None and tag.language not in _groups()


@lru_cache(maxsize=1)
def _groups() -> frozenset[str]:
    rows = [row for row in parse_registry() if row.get("Type") == "language"]  # type: ignore[no-untyped-call]
    return frozenset(str(row["Subtag"]) for row in rows if row.get("Scope") in ("collection", "special"))


def _plain(code: str) -> str:
    return code.strip().casefold().replace("-", "_")


def _distance(wanted: Language, own: Language) -> float:
    """CLDR's, regions left out; infinite where the scripts differ."""
    scripts = wanted.maximize().script, own.maximize().script
    if scripts[0] != scripts[1]:
        return float("inf")
    first, second = (Language.make(tag.language, script=scripts[0]) for tag in (wanted, own))
    return tag_distance(first, second)


@dataclass(frozen=True, slots=True)
class Directed:
    """A text on its way from one language to another.

    ``source``, ``target``: the model's codes, None where they are not known. ``around``: special tokens before and
    after the text, None for the tokenizer's own. ``start``: what the decoder starts with; ``first``: the token that
    must come first; None for the checkpoint's. ``task``: key of the checkpoint's ``task_specific_params``.
    """

    text: str
    source: str | None = None
    target: str | None = None
    around: Around | None = None
    start: int | None = None
    first: int | None = None
    task: str | None = None


class Languages(ABC):
    """How a model is told languages. ``sources``: None where any will do, since the model is not told."""

    needs_source: bool = False

    def __init__(self, sources: LanguageCodes | None, targets: LanguageCodes) -> None:
        self.sources, self.targets = sources, targets

    @property
    def codes(self) -> tuple[str, ...]:
        known = () if self.sources is None else self.sources.codes
        return tuple(dict.fromkeys((*known, *self.targets.codes)))

    def direct(self, text: str, source: str | None, target: str | None) -> Directed:
        """``source``, ``target``: as users give them, None where they do not. Errors: `UnknownLanguage`."""
        own_target = None if target is None else self.targets.find(target, "target_lang")
        return self.place(text, self._source(source), own_target)

    def _source(self, wanted: str | None) -> str | None:
        if wanted is None:
            return None
        if self.sources is not None:
            return self.sources.find(wanted, "source_lang")
        if parsed(wanted) is None:
            raise UnknownLanguage(f"source_lang: {wanted[:64]!r} is no language code", field="source_lang")
        return wanted

    @abstractmethod
    def place(self, text: str, source: str | None, target: str | None) -> Directed:
        """The same with the model's own codes."""
