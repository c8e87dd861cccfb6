"""Logs on standard error, one JSON object (or one line of text) a record, from our code and from libraries alike."""

import logging
import sys
from typing import Any, Literal, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

LogFormat = Literal["json", "text"]
CHATTY = ("uvicorn.error", "sentence_transformers", "httpx")
"""Libraries whose information says what we say already."""


def configure_logging(level: str = "info", log_format: LogFormat = "json", stream: TextIO | None = None) -> None:
    """Send every log record, and Python's warnings, to ``stream`` (standard error). Replaces what was set before."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(make_formatter(log_format, colors=handler.stream.isatty()))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.DEBUG if level == "debug" else max(root.level, logging.WARNING))
    logging.captureWarnings(True)


def make_formatter(log_format: LogFormat, colors: bool = False) -> logging.Formatter:
    """A formatter of standard-library records: message, level, logger, time, and what was given as ``extra``."""
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
            structlog.processors.TimeStamper(fmt="iso"),
        ],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_render(log_format, colors)],
    )


def _render(log_format: LogFormat, colors: bool) -> list[Processor]:
    if log_format == "text":
        return [structlog.dev.ConsoleRenderer(colors=colors)]
    return [structlog.processors.format_exc_info, JsonRenderer()]


class JsonRenderer:
    """Last step of a record: one line of JSON. A value that JSON has no type for is written as its ``str``."""

    def __init__(self) -> None:
        self._encoder = msgspec.json.Encoder(enc_hook=str)

    def __call__(self, logger: WrappedLogger, method_name: str, event_dict: EventDict) -> str:
        record: dict[str, Any] = {"timestamp": event_dict.pop("timestamp"), "level": event_dict.pop("level")}
        record.update(event_dict)
        return self._encode(record)

    def _encode(self, record: dict[str, Any]) -> str:
        try:
            return self._encoder.encode(record).decode()
        except (TypeError, ValueError):  # a key that is no string, or a lone surrogate in a value
            safe = {str(key): repr(value) for key, value in record.items()}
            return self._encoder.encode(safe).decode()
