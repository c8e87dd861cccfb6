"""/translate: a text in another language. The model must be one that translates between two languages."""

from padserve.core import ModelSpec
from padserve.tasks.generating import Ask, GeneratingRequest, GeneratingTask, asked
from padserve.text.tokenizer import Tokenizer

FAMILIES = ("marian",)


class TranslateRequest(GeneratingRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``num_beams`` is the checkpoint's unless given."""


class Translate(GeneratingTask[TranslateRequest]):
    name = "translate"
    summary = "A text in another language"
    heads = frozenset({"seq2seq-lm"})
    request_type = TranslateRequest

    @classmethod
    def supports(cls, spec: ModelSpec) -> str | None:
        if spec.head in cls.heads and spec.family not in FAMILIES:
            return f"/translate serves {', '.join(FAMILIES)} in this version; {spec.name!r} is {spec.family}"
        return super().supports(spec)

    def ask(self, request: TranslateRequest, spec: ModelSpec, tokenizer: Tokenizer, text: str) -> Ask:
        return asked(request, spec, tokenizer, text, {})
