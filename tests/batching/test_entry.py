"""Tickets end once; reports carry each entry's outcome and the request's times."""

import asyncio
from typing import Any

import numpy as np
import pytest

from padserve.batching.entry import BatchReport, Entry, FormedBatch, Ticket
from padserve.core import Encoding
from padserve.errors import EngineDown, InternalError


def output(value: float) -> Any:
    return np.array([value], dtype=np.float32)


@pytest.mark.asyncio
async def test_a_ticket_is_done_when_every_sequence_has_its_first_outcome() -> None:
    ticket = Ticket(3, asyncio.get_running_loop().create_future())
    ticket.settle(2, output(2))
    ticket.settle(0, output(0))
    ticket.settle(0, EngineDown("late"))
    assert not ticket.done.done()
    ticket.settle(1, InternalError("bad"))
    assert ticket.done.done()
    ticket.settle(1, output(1))
    assert [getattr(outcome, "tolist", lambda: "error")() for outcome in ticket.outcomes] == [[0], "error", [2]]


@pytest.mark.asyncio
async def test_an_outcome_for_a_cancelled_request_is_harmless() -> None:
    ticket = Ticket(1, asyncio.get_running_loop().create_future())
    ticket.done.cancel()
    ticket.settle(0, output(0))
    assert ticket.done.cancelled()


@pytest.mark.asyncio
async def test_a_request_reports_its_slowest_sequence_and_its_last_batch() -> None:
    ticket = Ticket(2, asyncio.get_running_loop().create_future())
    entries = [Entry("m", Encoding(np.arange(length)), ticket, index, 10.0) for index, length in enumerate((3, 5))]
    BatchReport(FormedBatch("m", entries[:1], 13.0), [output(0)], 0.5).deliver()
    BatchReport(FormedBatch("m", entries[1:], 11.0), [output(1)], 0.25).deliver()
    timings = ticket.timings
    assert (timings.queue_s, timings.run_s) == (3.0, 0.5)
    assert (timings.batch_tokens, timings.batch_size) == (5, 1)
    assert ticket.done.done()


def test_a_batch_that_cannot_be_packed_is_left_to_its_worker(make_entry: Any) -> None:
    good, bad = FormedBatch("m", [make_entry(3)], 0.0), FormedBatch("m", [make_entry(3), make_entry(0)], 0.0)
    packed = good.pack().packed
    assert packed is not None
    assert packed.lengths.tolist() == [3]
    assert bad.pack().packed is None
