"""How each kind of multilingual model is told its languages.

    mBART      text </s> source      the decoder starts with the target
    mBART-50   source text </s>      the target is forced as first token
    M2M100     source text </s>      the target is forced as first token
    NLLB       source text </s>      the target is forced as first token (legacy: text </s> source)
    Marian     >>target<< text       of several target languages; others know one pair
    T5         translate English to German: text

The tokenizers of transformers keep the source language as state. Here it is a matter of each request.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from padserve.errors import InvalidField
from padserve.text.languages import Around, Directed, LanguageCodes, Languages, is_one_language, same_language
from padserve.text.tokenizer import Tokenizer

TASK = re.compile(r"translation_([^_]+)_to_([^_]+)")
PREFIX = re.compile(r"translate (.+) to (.+): ")
NAME = re.compile(r"opus-mt-(?:tc-[a-z]+-)?([A-Za-z_]+)-([A-Za-z_]+)/?$")
Pair = tuple[str, str]
MARK = re.compile(r">>([^<>]+)<<")


class LanguageTokens(Languages):
    """A token for each language. ``around``: the tokenizer's own special tokens. ``starts``: the decoder starts with
    the target. ``defaults``: the checkpoint's, which may start with, or force, one language by themselves.
    """

    needs_source = True

    def __init__(
        self,
        tokens: Mapping[str, int],
        around: Around,
        starts: bool,
        defaults: Mapping[str, Any],
        tasks: Sequence[str],
    ) -> None:
        codes = LanguageCodes(tokens)
        super().__init__(codes, codes)
        self._tokens, self._around, self._starts, self._tasks = tokens, around, starts, tasks
        by_id: dict[Any, str] = {token: code for code, token in tokens.items()}
        self._own_source = next((by_id[token] for token in (*around[0], *around[1]) if token in by_id), None)
        own_first = by_id.get(defaults.get("forced_bos_token_id"))
        own_start = by_id.get(defaults.get("decoder_start_token_id")) if starts else None
        self._own_target = own_first or own_start
        self._forces = not starts or own_first is not None

    def place(self, text: str, source: str | None, target: str | None) -> Directed:
        token = None if target is None else self._tokens[target]
        surrounding = None if source is None else self._surrounded(self._tokens[source])
        source, target = source or self._own_source, target or self._own_target
        return Directed(
            text,
            source,
            target,
            around=surrounding,
            start=token if self._starts else None,
            first=token if self._forces else None,
            task=_task_of(self._tasks, source, target),
        )

    def _surrounded(self, source: int) -> Around:
        known = frozenset(self._tokens.values())
        before, after = (tuple(source if token in known else token for token in side) for side in self._around)
        return before, after


class Marks(Languages):
    """Marian with several target languages: a mark before the text names the one that is wanted."""

    def __init__(self, source: str | None, marks: Sequence[str]) -> None:
        super().__init__(_declared(source), LanguageCodes(MARK.sub(r"\1", mark) for mark in marks))
        self._own_source = source if self.sources else None

    def place(self, text: str, source: str | None, target: str | None) -> Directed:
        given = MARK.match(text)
        marked = given[1] if given and given[1] in self.targets.codes else None
        if marked and target not in (None, marked):
            raise InvalidField(f"target_lang is {target}, but the text asks for {marked}", field="target_lang")
        if not marked and target:
            text = f">>{target}<< {text}"
        return Directed(text, source or self._own_source, target or marked)


class OnePair(Languages):
    """Marian from one language, or one of a group, to another."""

    def __init__(self, source: str, target: str) -> None:
        super().__init__(_declared(source), _declared(target) or LanguageCodes([target]))
        self._own_source, self._own_target = source if self.sources else None, target

    def place(self, text: str, source: str | None, target: str | None) -> Directed:
        return Directed(text, source or self._own_source, target or self._own_target)


class Prefixes(Languages):
    """T5: the languages that the checkpoint's ``task_specific_params`` know, by code or by name."""

    needs_source = True

    def __init__(self, prefixes: Mapping[str, str]) -> None:
        """``prefixes``: by key, ``translation_en_to_de``."""
        matches = [(TASK.fullmatch(key), prefix) for key, prefix in prefixes.items()]
        self._prefixes: dict[Pair, str] = {(match[1], match[2]): prefix for match, prefix in matches if match}
        self._names: dict[str, str] = {}
        for pair, prefix in self._prefixes.items():
            if named := PREFIX.fullmatch(prefix):
                self._names |= {pair[0]: named[1], pair[1]: named[2]}
        codes = dict.fromkeys(code for pair in self._prefixes for code in pair)
        known = LanguageCodes(codes, {name: code for code, name in self._names.items()})
        super().__init__(known, known)

    def place(self, text: str, source: str | None, target: str | None) -> Directed:
        if source is None and target is None and (pair := self._written(text)):
            return Directed(text, pair[0], pair[1], task=_key(*pair))
        pair = self._pair(source, target)
        if pair is None:
            return Directed(text, source, target)
        prefix = self._prefixes.get(pair) or self._composed(*pair)
        return Directed(
            text if text.startswith(prefix) else prefix + text,
            pair[0],
            pair[1],
            task=_key(*pair) if pair in self._prefixes else None,
        )

    def _written(self, text: str) -> Pair | None:
        return next((pair for pair, prefix in self._prefixes.items() if text.startswith(prefix)), None)

    def _pair(self, source: str | None, target: str | None) -> Pair | None:
        """What is given, completed where the checkpoint knows one pair only that fits. Errors: `InvalidField`."""
        pairs = [pair for pair in self._prefixes if target in (None, pair[1]) and source in (None, pair[0])]
        if source is not None and target is not None and source != target:
            return source, target
        if len(pairs) == 1:
            return pairs[0]
        if source is None and target is None:
            return None
        wrong = "are the same" if source == target else "are both needed"
        known = ", ".join(self.codes)
        raise InvalidField(f"source_lang and target_lang {wrong}; the languages are {known}", field="source_lang")

    def _composed(self, source: str, target: str) -> str:
        for code, field in ((source, "source_lang"), (target, "target_lang")):
            if code not in self._names:
                raise InvalidField(f"the checkpoint has no prefix for {source} to {target}", field=field)
        return f"translate {self._names[source]} to {self._names[target]}: "


def languages_of(tokenizer: Tokenizer, config: Any, defaults: Mapping[str, Any]) -> Languages | None:
    """None for a model that has no languages. ``config``: the model's; ``defaults``: its generation config."""
    if not config.is_encoder_decoder:
        return None
    params: Mapping[str, Mapping[str, Any]] = getattr(config, "task_specific_params", None) or {}
    if config.model_type == "marian":
        return _marian(tokenizer, config.name_or_path)
    prefixes = {key: str(each["prefix"]) for key, each in params.items() if TASK.fullmatch(key) and "prefix" in each}
    if prefixes:
        return Prefixes(prefixes)
    tokens = tokenizer.language_tokens()
    if not tokens:
        return None
    around = tokenizer.around()
    starts = config.model_type == "mbart" and bool(set(around[1]) & set(tokens.values()))
    return LanguageTokens(tokens, around, starts, defaults, [key for key in params if TASK.fullmatch(key)])


def _marian(tokenizer: Tokenizer, name: str) -> Languages | None:
    """What the tokenizer says, else the checkpoint's ``name``."""
    source, target = tokenizer.declared_languages
    if tokenizer.language_marks:
        return Marks(source, tokenizer.language_marks)
    if source and target:
        return OnePair(source, target)
    named = NAME.search(name)
    return OnePair(named[1], named[2]) if named else None


def _declared(code: str | None) -> LanguageCodes | None:
    return LanguageCodes([code]) if code is not None and is_one_language(code) else None


def _key(source: str, target: str) -> str:
    return f"translation_{source}_to_{target}"


def _task_of(tasks: Sequence[str], source: str | None, target: str | None) -> str | None:
    """The checkpoint's task for a pair of languages."""
    if source is None or target is None:
        return None
    for task in tasks:
        pair = TASK.fullmatch(task)
        if pair and same_language(source, pair[1]) and same_language(target, pair[2]):
            return task
    return None
