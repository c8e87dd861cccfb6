"""The error tree. Each class carries its stable ``code`` and its HTTP status; ``http`` turns it into a reply.

PadserveError
├── MalformedRequest 400 · BadEncoding 400
├── Unauthorized 401
├── UnknownModel 404 · UnknownRoute 404
├── MethodNotAllowed 405
├── BodyTooLarge 413 · TooManyTokens 413
├── UnsupportedMediaType 415
├── InvalidField 422 · EmptyInputs 422 · EmptyInput 422 · WrongTask 422 · InputTooLong 422 · NoMask 422 ·
│   UnknownLanguage 422
├── QueueFull 429 (retry_after_s)
├── ClientClosed 499
├── InternalError 500 · NonfiniteOutput 500
├── Unavailable 503 (retry_after_s): Starting · Draining · EngineDown
└── DeadlineExceeded 504
ConfigError (start-up only: never a reply)
"""

from typing import Any, ClassVar


class PadserveError(Exception):
    """Base of every error a client can be told about.

    ``message`` says what was wrong, what was expected and what to do; ``extra`` holds further members of the
    problem object, such as both lengths of an input that is too long.
    """

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"

    def __init__(self, message: str, **extra: Any) -> None:
        super().__init__(message)
        self.message = message
        self.extra = extra


class MalformedRequest(PadserveError):
    code, status, title = "malformed_json", 400, "Malformed request"


class BadEncoding(PadserveError):
    code, status, title = "bad_encoding", 400, "Text that is not valid Unicode"


class Unauthorized(PadserveError):
    code, status, title = "unauthorized", 401, "Missing or wrong API key"


class UnknownModel(PadserveError):
    code, status, title = "unknown_model", 404, "Unknown model"


class UnknownRoute(PadserveError):
    code, status, title = "not_found", 404, "Unknown route"


class MethodNotAllowed(PadserveError):
    code, status, title = "method_not_allowed", 405, "Method not allowed"


class BodyTooLarge(PadserveError):
    code, status, title = "body_too_large", 413, "Request body too large"


class TooManyTokens(PadserveError):
    """A request that alone is larger than the whole queue, so it can never be admitted."""

    code, status, title = "too_many_tokens", 413, "More tokens than the queue can ever hold"


class UnsupportedMediaType(PadserveError):
    code, status, title = "unsupported_media_type", 415, "Unsupported media type"


class InvalidField(PadserveError):
    code, status, title = "invalid_field", 422, "Invalid field"


class EmptyInputs(PadserveError):
    code, status, title = "empty_inputs", 422, "No inputs"


class EmptyInput(PadserveError):
    """An input that has no token at all; never given to a kernel."""

    code, status, title = "empty_input", 422, "Input without tokens"


class WrongTask(PadserveError):
    code, status, title = "wrong_task", 422, "The model does not serve this task"


class InputTooLong(PadserveError):
    code, status, title = "input_too_long", 422, "Input longer than the model can take"

    def __init__(self, length: int, max_length: int, advice: str = 'set "truncate": true to cut it') -> None:
        message = f"the input has {length} tokens, the model takes at most {max_length}; {advice}"
        super().__init__(message, length=length, max_length=max_length)


class NoMask(PadserveError):
    code, status, title = "no_mask", 422, "No mask in the input"


class UnknownLanguage(PadserveError):
    """``languages``: those that the model has."""

    code, status, title = "unknown_language", 422, "The model does not have this language"


class QueueFull(PadserveError):
    code, status, title = "queue_full", 429, "Queue full"

    def __init__(self, message: str, retry_after_s: int, **extra: Any) -> None:
        super().__init__(message, **extra)
        self.retry_after_s = retry_after_s


class ClientClosed(PadserveError):
    """The client went away; logged with status 499, never sent."""

    code, status, title = "client_closed", 499, "Client closed the connection"


class InternalError(PadserveError):
    pass


class NonfiniteOutput(PadserveError):
    code, status, title = "nonfinite_output", 500, "The model returned NaN or infinity"


class Unavailable(PadserveError):
    code, status, title = "unavailable", 503, "Service unavailable"

    def __init__(self, message: str, retry_after_s: int = 1, **extra: Any) -> None:
        super().__init__(message, **extra)
        self.retry_after_s = retry_after_s


class Starting(Unavailable):
    code, title = "starting", "Models are still loading"


class Draining(Unavailable):
    code, title = "draining", "The server is shutting down"


class EngineDown(Unavailable):
    code, title = "engine_down", "A device worker died"


class DeadlineExceeded(PadserveError):
    code, status, title = "deadline_exceeded", 504, "Deadline exceeded"


class ConfigError(Exception):
    """A wrong configuration, found at start-up: the key, what was expected, the nearest valid one."""
