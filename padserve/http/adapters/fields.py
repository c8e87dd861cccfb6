"""Request fields that several adapters have."""

from typing import Annotated, Any, Literal

import msgspec

from padserve.errors import InvalidField
from padserve.tasks.embed import EmbedRequest
from padserve.tasks.embed_ids import EmbedIdsRequest

Dimensions = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
TextsOrIds = str | list[str | TokenId | list[TokenId]]
"""A text, texts, the token ids of one text, or those of several."""


class NativeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of every native route that adapters take too. Unknown fields are ignored: clients send many."""

    truncate: bool = False
    truncation_side: Literal["right", "left"] = "right"
    priority: Literal["interactive", "bulk"] = "interactive"
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=86_400_000)] | None = None


def native(asked: NativeOptions) -> dict[str, Any]:
    """The native fields, for a task's request."""
    return {name: getattr(asked, name) for name in NativeOptions.__struct_fields__}


def embed_request(given: TextsOrIds, field: str, **options: Any) -> EmbedRequest:
    """What /embed is asked: an `EmbedIdsRequest` for token ids. Errors: `InvalidField` for a mixture."""
    kind, inputs = texts_or_ids(given, field)
    return EmbedIdsRequest(ids=inputs, **options) if kind == "ids" else EmbedRequest(inputs=inputs, **options)


def texts_or_ids(given: TextsOrIds, field: str) -> tuple[Literal["inputs", "ids"], Any]:
    """``inputs``, a text or texts, or ``ids``, those of each. Errors: `InvalidField` for a mixture."""
    if not given or isinstance(given, str):
        return "inputs", given
    if texts := _all(given, str):
        return "inputs", texts
    if ids := _all(given, int):
        return "ids", [ids]
    if lists := _all(given, list):
        return "ids", lists
    raise InvalidField(f"{field}: a list holds texts, token ids, or lists of token ids, not a mixture", field=field)


def _all(given: list[Any], kind: type) -> list[Any]:
    """The list if it holds nothing else, else an empty one."""
    return given if all(isinstance(one, kind) for one in given) else []
