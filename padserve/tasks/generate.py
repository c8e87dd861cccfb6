"""/generate: text that goes on from a prompt, or what an encoder-decoder makes of its input."""

from padserve.core import ModelSpec
from padserve.tasks.generating import Ask, GeneratingRequest, GeneratingTask, asked, beams_of
from padserve.text.tokenizer import Tokenizer


class GenerateRequest(GeneratingRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``num_beams`` is 1 unless given."""


class Generate(GeneratingTask[GenerateRequest]):
    name = "generate"
    summary = "Text that goes on from a prompt"
    heads = frozenset({"causal-lm", "seq2seq-lm"})
    request_type = GenerateRequest

    def ask(self, request: GenerateRequest, spec: ModelSpec, tokenizer: Tokenizer, text: str) -> Ask:
        return asked(request, spec, tokenizer, text, {"num_beams": beams_of(request, spec)})
