"""OpenAI's error shape, for everything under ``/v1``."""

import msgspec

from padserve.http.adapters.dialect import Dialect, Problem

CODES = {
    "unauthorized": "invalid_api_key",
    "unknown_model": "model_not_found",
    "input_too_long": "context_length_exceeded",
    "queue_full": "rate_limit_exceeded",
}
"""Codes that OpenAI has a word for; the others stay as they are."""
PARAMETERS = {"unknown_model": "model", "wrong_task": "model"}


class OpenAIErrorDetail(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(msgspec.Struct, frozen=True):
    error: OpenAIErrorDetail


def _write(problem: Problem) -> tuple[int, OpenAIError]:
    """An invalid field is a 400 at OpenAI."""
    status, code = int(problem["status"]), str(problem["code"])
    status = 400 if status == 422 else status
    parameter = problem.get("field") or PARAMETERS.get(code)
    return status, OpenAIError(OpenAIErrorDetail(problem["detail"], _type(status), parameter, CODES.get(code, code)))


def _type(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"


OPENAI_ERRORS = Dialect(OpenAIError, _write)
