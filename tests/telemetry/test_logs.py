"""Logs: every record, ours or a library's, is one JSON object."""

import io
import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from padserve.telemetry.logs import configure_logging, make_formatter


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where logs go while a test runs; what was set before is put back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_record(stream: io.StringIO) -> None:
    configure_logging("info", "json", stream)
    logging.getLogger("padserve.access").info("request", extra={"status": 200, "run_ms": 1.5})
    [line] = lines(stream)
    assert (line["level"], line["logger"], line["event"]) == ("info", "padserve.access", "request")
    assert (line["status"], line["run_ms"]) == (200, 1.5)
    assert line["timestamp"].endswith("Z")


def test_library_record_with_arguments(stream: io.StringIO) -> None:
    configure_logging("info", "json", stream)
    logging.getLogger("some.library").warning("%s is %d\nlines", "two", 2)
    assert lines(stream)[0]["event"] == "two is 2\nlines"


def test_exception_has_its_traceback_in_the_same_line(stream: io.StringIO) -> None:
    configure_logging("info", "json", stream)
    try:
        raise ValueError("cause")
    except ValueError:
        logging.getLogger("x").exception("failed")
    [line] = lines(stream)
    assert "Traceback" in line["exception"]
    assert "ValueError: cause" in line["exception"]


def test_python_warnings_are_records(stream: io.StringIO) -> None:
    configure_logging("info", "json", stream)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old thing", DeprecationWarning, stacklevel=1)
        logging.captureWarnings(False)
    [line] = lines(stream)
    assert (line["level"], line["logger"]) == ("warning", "py.warnings")
    assert "old thing" in line["event"]


def test_level(stream: io.StringIO) -> None:
    configure_logging("warning", "json", stream)
    logging.getLogger("x").info("quiet")
    logging.getLogger("x").warning("loud")
    assert [line["event"] for line in lines(stream)] == ["loud"]


def test_configuring_twice_writes_once(stream: io.StringIO) -> None:
    configure_logging("info", "json", stream)
    configure_logging("info", "json", stream)
    logging.getLogger("x").info("once")
    assert len(lines(stream)) == 1


def test_text(stream: io.StringIO) -> None:
    configure_logging("info", "text", stream)
    logging.getLogger("x").info("hello", extra={"status": 200})
    assert "hello" in stream.getvalue()
    assert "status=200" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("odd", ["\ud83d", {1: {"\ud83d"}}, object(), float("nan"), b"\xff", ValueError("x")])
def test_odd_values_never_break_the_log(odd: object) -> None:
    record = logging.LogRecord("x", logging.INFO, "", 1, "event", (), None)
    record.odd = odd
    assert "odd" in json.loads(make_formatter("json").format(record))
