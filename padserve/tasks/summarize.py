"""/summarize: a shorter text of the same content, by an encoder-decoder that was trained for it."""

from padserve.core import ModelSpec
from padserve.errors import InvalidField
from padserve.tasks.direction import task_defaults
from padserve.tasks.generating import Ask, GeneratingRequest, GeneratingTask, asked
from padserve.text.tokenizer import Tokenizer

TRANSLATORS = ("marian", "m2m_100")
"""Families whose checkpoints do nothing but translate."""
TASK = "summarization"


class SummarizeRequest(GeneratingRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Absent fields take what the checkpoint's ``task_specific_params`` say, before its ``generation_config``."""


class Summarize(GeneratingTask[SummarizeRequest]):
    name = "summarize"
    summary = "A shorter text of the same content"
    heads = frozenset({"seq2seq-lm"})
    request_type = SummarizeRequest

    @classmethod
    def supports(cls, spec: ModelSpec) -> str | None:
        if spec.head in cls.heads and spec.family in TRANSLATORS:
            return f"/summarize: {spec.name!r} is of the family {spec.family}, which only translates"
        return super().supports(spec)

    def ask(self, request: SummarizeRequest, spec: ModelSpec, tokenizer: Tokenizer, text: str) -> Ask:
        defaults = task_defaults(spec, TASK)
        prefix = str(defaults.get("prefix") or "")
        if prefix and (request.source_lang or request.target_lang):
            raise InvalidField(f"the model is told what to do by {prefix!r}, not by languages", field="target_lang")
        whole = text if text.startswith(prefix) else prefix + text
        return asked(request, spec, tokenizer, whole, {}, defaults)
