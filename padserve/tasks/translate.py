"""/translate: a text in another language, as a whole or sentence by sentence."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from padserve.core import Generated, ModelSpec
from padserve.errors import InvalidField
from padserve.tasks.base import Plan
from padserve.tasks.direction import direct, task_defaults
from padserve.tasks.generating import Ask, GeneratingRequest, GeneratingResult, GeneratingTask, Work, asked
from padserve.tasks.joined import joined
from padserve.text.languages import Directed
from padserve.text.split import split_sentences
from padserve.text.tokenizer import Tokenizer

FAMILIES = ("marian",)
"""Those that translate even where the checkpoint does not say between which languages."""


class TranslateRequest(GeneratingRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``num_beams`` is the checkpoint's unless given. ``split``: ``sentence`` translates each sentence by itself."""

    split: Literal["none", "sentence"] = "none"


class Translate(GeneratingTask[TranslateRequest]):
    name = "translate"
    summary = "A text in another language"
    heads = frozenset({"seq2seq-lm"})
    request_type = TranslateRequest

    @classmethod
    def supports(cls, spec: ModelSpec) -> str | None:
        known = spec.generation is not None and spec.generation.languages
        if spec.head in cls.heads and spec.family not in FAMILIES and not known:
            return f"/translate needs a model that has languages; the {spec.family} checkpoint {spec.name!r} names none"
        return super().supports(spec)

    def plan(self, request: TranslateRequest, spec: ModelSpec, tokenizer: Tokenizer) -> Plan:
        for field in ("stop", "stop_token_ids"):
            if request.split == "sentence" and getattr(request, field):
                raise InvalidField(f"{field} ends a whole text: it cannot be used with split", field=field)
        return super().plan(request, spec, tokenizer)

    def ask(self, request: TranslateRequest, spec: ModelSpec, tokenizer: Tokenizer, text: str) -> Ask:
        directed = _directed(request, tokenizer, text)
        return asked(request, spec, tokenizer, directed, {}, task_defaults(spec, directed.task, "translation"))

    def work(self, request: TranslateRequest, spec: ModelSpec, tokenizer: Tokenizer, text: str) -> Work:
        if request.split == "none":
            return super().work(request, spec, tokenizer, text)
        whole = _directed(request, tokenizer, text)
        sentences, gaps = split_sentences(text, whole.source or "en")
        if tokenizer.languages is not None:
            request = msgspec.structs.replace(request, source_lang=whole.source, target_lang=whole.target)
        asks = [self.ask(request, spec, tokenizer, sentences[0])]
        request = msgspec.structs.replace(request, target_prefix="")
        asks += [self.ask(request, spec, tokenizer, sentence) for sentence in sentences[1:]]
        return Work(tuple(asks), gaps)

    def result(
        self, request: TranslateRequest, work: Work, outputs: Sequence[Sequence[Generated]], tokenizer: Tokenizer
    ) -> GeneratingResult:
        pairs = zip(work.asks, outputs, strict=True)
        return joined([self.part(request, ask, own, tokenizer) for ask, own in pairs], work.gaps)


def _directed(request: TranslateRequest, tokenizer: Tokenizer, text: str) -> Directed:
    """Errors: `InvalidField` where the model must be told the target language."""
    directed = direct(tokenizer, text, request.source_lang, request.target_lang)
    if tokenizer.languages is not None and directed.target is None:
        known = ", ".join(tokenizer.languages.targets.codes)
        raise InvalidField(f"the model needs a target_lang, one of {known}", field="target_lang")
    return directed
