"""Completions of texts, of token ids and of conversations. Not a route of its own: compatible routes ask for them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from padserve.core import ModelSpec
from padserve.errors import EmptyInputs, InvalidField
from padserve.tasks.base import Plan, Unit, as_list, plan_each
from padserve.tasks.generate import Generate, GenerateRequest
from padserve.tasks.generating import Ask, TokenText, asked_of, input_room
from padserve.tasks.ids import fitted, tokens_of
from padserve.text.tokenizer import Tokenizer, Tokens

CONTEXT_TOKENS = 8
"""Tokens before another that its text can depend on."""


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """``messages``: as a chat template takes them. ``variables``: of the template, beside its usual ones."""

    messages: list[dict[str, Any]]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: dict[str, Any] = msgspec.field(default_factory=dict)


class CompleteRequest(GenerateRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of ``inputs``, ``ids`` and ``conversation``. Streams take several inputs."""

    inputs: str | list[str] = msgspec.field(default_factory=list)
    ids: list[list[int]] | None = None
    conversation: Conversation | None = None
    add_special_tokens: bool = True


class Complete(Generate):
    """/generate, of a `CompleteRequest`. Tokens in log probabilities are shown by the text that they add."""

    request_type = CompleteRequest

    def plan(self, request: GenerateRequest, spec: ModelSpec, tokenizer: Tokenizer) -> Plan:
        assert isinstance(request, CompleteRequest)
        room = input_room(spec)

        def unit(prompt: Callable[[], Tokens]) -> Unit:
            tokens = fitted(prompt(), room, request)
            return Unit((), asked_of(request, spec, tokenizer, tokens, {"num_beams": 1}))

        return plan_each(_prompts(request, spec, tokenizer), unit)

    def token_text(self, ask: Ask, before: Sequence[int], tokenizer: Tokenizer) -> TokenText:
        context = [*ask.options.prompt[-CONTEXT_TOKENS:], *before[-CONTEXT_TOKENS:]][-CONTEXT_TOKENS:]
        return lambda token_id: tokenizer.text_after(context, token_id)


def _prompts(request: CompleteRequest, spec: ModelSpec, tokenizer: Tokenizer) -> list[Callable[[], Tokens]]:
    """How each input's tokens are made."""
    if request.conversation is not None:
        conversation = request.conversation
        return [partial(_chat_tokens, conversation, spec, tokenizer)]
    if request.ids is not None:
        return [partial(tokens_of, ids, spec, tokenizer) for ids in request.ids]
    special = request.add_special_tokens
    return [partial(tokenizer.tokens, text, add_special_tokens=special) for text in as_list(request.inputs)]


def _chat_tokens(conversation: Conversation, spec: ModelSpec, tokenizer: Tokenizer) -> Tokens:
    """The template writes the special tokens itself: none are added. Errors: `InvalidField`, `EmptyInputs`."""
    if not tokenizer.has_chat_template:
        raise InvalidField(
            f"{spec.name!r} has no chat template, so it takes no messages; send a text to /v1/completions",
            field="model",
        )
    if not conversation.messages:
        raise EmptyInputs("the list of messages is empty; give at least one")
    text = tokenizer.chat_text(
        conversation.messages,
        add_generation_prompt=conversation.add_generation_prompt,
        continue_final_message=conversation.continue_final_message,
        variables=conversation.variables,
    )
    return tokenizer.tokens(text, add_special_tokens=False)
