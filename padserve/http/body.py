"""From raw bytes to a request Struct, strictly: ``"5"`` and ``5.0`` are no integers."""

import difflib
import re
from typing import Any, Generic, TypeVar

import msgspec
import msgspec.inspect
from litestar.types import Receive, Scope

from padserve.errors import (
    BadEncoding,
    BodyTooLarge,
    ClientClosed,
    InvalidField,
    MalformedRequest,
    UnsupportedMediaType,
)
from padserve.http.exchange import header

RequestT = TypeVar("RequestT", bound=msgspec.Struct)
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|u([dD][89a-fA-F]..)|.)", re.DOTALL)
"""One escape sequence of a JSON string; group 1 matches a surrogate that is not half of a pair."""


def check_media_type(scope: Scope) -> None:
    """Errors: `UnsupportedMediaType` for a body that is not plain JSON in UTF-8."""
    given = header(scope, b"content-type")
    if given is not None and given != b"application/json":
        _check_content_type(given.decode("latin-1"))
    coding = header(scope, b"content-encoding")
    if coding is not None and coding.lower() not in (b"", b"identity"):
        name = coding.decode("latin-1")
        raise UnsupportedMediaType(f"Content-Encoding {name[:64]!r} is not supported; send the body uncompressed")


def _check_content_type(content_type: str) -> None:
    media_type, *parameters = (part.strip().lower() for part in content_type.split(";"))
    is_json = media_type == "application/json" or re.fullmatch(r"application/[\w.-]+\+json", media_type)
    if media_type and not is_json:
        raise UnsupportedMediaType(
            f"Content-Type {media_type[:64]!r} is not supported; send JSON with the header "
            "'Content-Type: application/json'"
        )
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip(' "') not in ("utf-8", "utf8", "us-ascii"):
            raise UnsupportedMediaType(f"charset {value[:64]!r} is not supported; JSON is UTF-8")


async def read_body(scope: Scope, receive: Receive, max_bytes: int) -> bytes:
    """Errors: `BodyTooLarge` as soon as it is known, `ClientClosed` if the client leaves before the end."""
    announced = header(scope, b"content-length")
    if announced is not None and announced.isdigit() and int(announced[:20]) > max_bytes:
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    total = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientClosed("the client left before the end of its request")
        chunk = message.get("body", b"")
        total += len(chunk)
        if total > max_bytes:
            raise _too_large(max_bytes)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the request body is larger than {max_bytes} bytes; send fewer inputs at once, "
        "or raise [server] max_body_bytes",
        max_body_bytes=max_bytes,
    )


class BodyDecoder(Generic[RequestT]):
    """Decodes the bodies of one route. A leading byte order mark is skipped."""

    def __init__(self, request_type: type[RequestT]) -> None:
        self._decoder = msgspec.json.Decoder(request_type)
        self._choices = _choices(request_type)

    def decode(self, body: bytes) -> RequestT:
        """Errors: `BadEncoding`, `MalformedRequest`, `InvalidField`."""
        body = body.removeprefix(BYTE_ORDER_MARK)
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as error:
            _check_json(body)
            raise self._invalid_field(str(error)) from None
        except msgspec.DecodeError as error:
            raise _malformed(body, str(error)) from None
        except RecursionError:
            raise _too_deep() from None

    def _invalid_field(self, message: str) -> InvalidField:
        """msgspec says "Expected `int`, got `str` - at `$.inputs[3].text`": name the field, and the valid ones."""
        what, _, path = message.partition(" - at `$")
        path = path.removesuffix("`")
        unknown = re.search(r"unknown field `(.*)`$", what, re.DOTALL)
        missing = re.search(r"missing required field `(.*)`$", what, re.DOTALL)
        named = unknown or missing
        if named is not None:
            path = f"{path}.{named.group(1)}"
        field = path.removeprefix(".")
        if unknown is not None:
            return InvalidField(self._unknown_field(field, unknown.group(1)), field=field[:128])
        choices = self._choices.get(field) if what.startswith("Invalid enum value") else None
        advice = f"; the valid ones are {', '.join(map(repr, choices))}" if choices else ""
        return InvalidField(f"{field or 'the body'}: {what}{advice}", field=field)

    def _unknown_field(self, field: str, name: str) -> str:
        if field != name:
            return f"{field[:128]}: there is no such field"
        nearest = difflib.get_close_matches(name, self._choices, n=1)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        return f"{field[:128]}: there is no such field; {hint}the fields are {', '.join(sorted(self._choices))}"


def _choices(request_type: type[msgspec.Struct]) -> dict[str, tuple[Any, ...]]:
    """Every field of a Struct with the literal values that it takes, none where it takes others too."""
    info = msgspec.inspect.type_info(request_type)
    fields = info.fields if isinstance(info, msgspec.inspect.StructType) else ()
    return {field.encode_name: _literals(field.type) for field in fields}


def _literals(kind: msgspec.inspect.Type) -> tuple[Any, ...]:
    parts = kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)
    return tuple(value for part in parts if isinstance(part, msgspec.inspect.LiteralType) for value in part.values)


def _check_json(body: bytes) -> None:
    """A body with a wrong field may also be no JSON at all further on, which comes first."""
    try:
        msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise _malformed(body, str(error)) from None
    except RecursionError:
        raise _too_deep() from None


def _malformed(body: bytes, message: str) -> BadEncoding | MalformedRequest:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return BadEncoding(f"the body is not UTF-8: byte {error.start} is wrong; encode the JSON as UTF-8")
    if any(escape.group(1) for escape in ESCAPE.finditer(body)):
        return BadEncoding(
            r"the body has a lone surrogate (half of a \ud83d\ude00 pair), which is no character; "
            "cut texts between characters, not inside one"
        )
    if not body.strip():
        return MalformedRequest("the body is empty; send a JSON object")
    return MalformedRequest(f"the body is not valid JSON: {message.removeprefix('JSON is malformed: ')}")


def _too_deep() -> MalformedRequest:
    return MalformedRequest("the body is nested too deeply")
