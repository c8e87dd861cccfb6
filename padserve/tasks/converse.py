"""The next message of a conversation, by the checkpoint's chat template. Not a route of its own."""

from functools import partial
from typing import Any

import msgspec

from padserve.core import ModelSpec
from padserve.errors import EmptyInputs, InvalidField
from padserve.tasks.complete import Complete, Prompt
from padserve.tasks.generate import GenerateRequest
from padserve.tasks.generating import Ask
from padserve.text.tokenizer import Tokenizer, Tokens


class ConverseRequest(GenerateRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``messages``: as a chat template takes them. ``variables``: of the template, beside its usual ones."""

    inputs: str | list[str] = msgspec.field(default_factory=list)
    messages: list[dict[str, Any]]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: dict[str, Any] = msgspec.field(default_factory=dict)


class Converse(Complete):
    """/generate, of a `ConverseRequest`."""

    def prompts(self, request: GenerateRequest, spec: ModelSpec, tokenizer: Tokenizer) -> list[Prompt]:
        assert isinstance(request, ConverseRequest)
        return [partial(_tokens, request, spec, tokenizer)]

    def opening(self, ask: Ask, token_id: int, tokenizer: Tokenizer) -> str:
        """A message is a text by itself."""
        return ""


def _tokens(request: ConverseRequest, spec: ModelSpec, tokenizer: Tokenizer) -> Tokens:
    """The template writes the special tokens itself: none are added. Errors: `InvalidField`, `EmptyInputs`."""
    if not tokenizer.has_chat_template:
        raise InvalidField(
            f"{spec.name!r} has no chat template, so it takes no messages; send a text to /v1/completions",
            field="model",
        )
    if not request.messages:
        raise EmptyInputs("the list of messages is empty; give at least one")
    text = tokenizer.chat_text(
        request.messages,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        variables=request.variables,
    )
    return tokenizer.tokens(text, add_special_tokens=False)
