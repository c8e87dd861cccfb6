"""OpenAI's messages, and the same as chat templates take them."""

from typing import Annotated, Any

import msgspec

from padserve.errors import InvalidField


class ChatPart(msgspec.Struct, frozen=True, kw_only=True):
    """Of type ``text``; others are refused."""

    type: str
    text: str | None = None


class ChatFunction(msgspec.Struct, frozen=True, kw_only=True):
    """``arguments``: JSON."""

    name: str
    arguments: str = "{}"


class ChatToolCall(msgspec.Struct, frozen=True, kw_only=True):
    id: str | None = None
    type: str = "function"
    function: ChatFunction


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """``role``: whichever the template knows."""

    role: Annotated[str, msgspec.Meta(min_length=1)]
    content: str | list[ChatPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ChatToolCall] | None = None


def template_messages(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """Text parts become one text, a line each; fields that are absent stay so. Errors: `InvalidField`."""
    return [_message(message, f"messages[{place}]") for place, message in enumerate(messages)]


def _message(message: ChatMessage, place: str) -> dict[str, Any]:
    told: dict[str, Any] = {"role": message.role}
    content = message.content
    if content is not None:
        told["content"] = content if isinstance(content, str) else _text(content, f"{place}.content")
    if message.tool_calls:
        told["tool_calls"] = [_call(call, f"{place}.tool_calls") for call in message.tool_calls]
    elif content is None:
        raise InvalidField(f"{place}: a message needs content", field=f"{place}.content")
    for name in ("name", "tool_call_id"):
        if getattr(message, name) is not None:
            told[name] = getattr(message, name)
    return told


def _text(parts: list[ChatPart], place: str) -> str:
    for number, part in enumerate(parts):
        if part.type != "text" or part.text is None:
            message = f"{place}[{number}]: only parts of type 'text' are taken, this one is {part.type[:64]!r}"
            raise InvalidField(message, field=f"{place}[{number}]")
    return "\n".join(part.text or "" for part in parts)


def _call(call: ChatToolCall, place: str) -> dict[str, Any]:
    """Templates write the arguments as JSON themselves."""
    try:
        arguments = msgspec.json.decode(call.function.arguments)
    except msgspec.DecodeError as error:
        raise InvalidField(f"{place}: the arguments are not valid JSON", field=place) from error
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": call.type, "function": function}
