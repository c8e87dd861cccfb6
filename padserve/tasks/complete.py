"""Completions of texts and of token ids. Not a route of its own: compatible routes ask for them."""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from padserve.core import ModelSpec
from padserve.tasks.base import Plan, Unit, as_list, plan_each
from padserve.tasks.generate import Generate, GenerateRequest
from padserve.tasks.generating import Ask, TokenText, Work, asked_of, input_room
from padserve.tasks.ids import fitted, tokens_of
from padserve.text.languages import Directed
from padserve.text.tokenizer import Tokenizer, Tokens

CONTEXT_TOKENS = 8
"""Tokens before another that its text can depend on."""
Prompt = Callable[[], Tokens]


class CompleteRequest(GenerateRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``ids``: in place of ``inputs``, special tokens included. Streams take several inputs."""

    inputs: str | list[str] = msgspec.field(default_factory=list)
    ids: list[list[int]] | None = None
    add_special_tokens: bool = True


class Complete(Generate):
    """/generate, of a `CompleteRequest`. Tokens in log probabilities are shown by the text that they add."""

    def plan(self, request: GenerateRequest, spec: ModelSpec, tokenizer: Tokenizer) -> Plan:
        room = input_room(spec)

        def unit(prompt: Prompt) -> Unit:
            tokens = fitted(prompt(), room, request)
            return Unit((), Work((asked_of(request, spec, tokenizer, tokens, {"num_beams": 1}, Directed("")),)))

        return plan_each(self.prompts(request, spec, tokenizer), unit)

    def prompts(self, request: GenerateRequest, spec: ModelSpec, tokenizer: Tokenizer) -> list[Prompt]:
        """How the tokens of each input are made."""
        assert isinstance(request, CompleteRequest)
        if request.ids is not None:
            return [partial(tokens_of, ids, spec, tokenizer) for ids in request.ids]
        special = request.add_special_tokens
        return [partial(tokenizer.tokens, text, add_special_tokens=special) for text in as_list(request.inputs)]

    def opening(self, ask: Ask, token_id: int, tokenizer: Tokenizer) -> str:
        """The space that a token has after its prompt, where the tokenizer writes none at the beginning of a text."""
        if ask.options.source is not None or ask.lead:
            return ""
        return " " if self.token_text(ask, (), tokenizer)(token_id) == " " + tokenizer.decode([token_id]) else ""

    def token_text(self, ask: Ask, before: Sequence[int], tokenizer: Tokenizer) -> TokenText:
        context = [*ask.options.prompt[-CONTEXT_TOKENS:], *before[-CONTEXT_TOKENS:]][-CONTEXT_TOKENS:]
        return lambda token_id: tokenizer.text_after(context, token_id)
