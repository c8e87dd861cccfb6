"""Entries, lanes and running workers without models."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from padserve.batching.buckets import LengthBuckets
from padserve.batching.entry import Entry, Ticket
from padserve.batching.lane import Lane
from padserve.core import Encoding


@pytest.fixture(scope="session")
def make_entry() -> Callable[..., Entry]:
    """``make_entry(length, arrived, model, bulk, deadline)``: an entry with a ticket of its own."""

    def make(
        length: int, arrived: float = 0.0, model: str = "m", bulk: bool = False, deadline: float = float("inf")
    ) -> Entry:
        encoding = Encoding(np.full(length, length, dtype=np.int64))
        loop = asyncio.new_event_loop()
        ticket = Ticket(1, loop.create_future())
        loop.close()
        return Entry(model, encoding, ticket, 0, arrived, "bulk" if bulk else "interactive", deadline)

    return make


@pytest.fixture(scope="session")
def make_lane() -> Callable[..., Lane]:
    def make(model: str = "m", **settings: Any) -> Lane:
        options: dict[str, Any] = {
            "edges": (8, 16, 32),
            "max_batch_tokens": 64,
            "target_tokens": 64,
            "padded": False,
            "max_wait_s": 0.0,
        } | settings
        buckets = LengthBuckets(options.pop("edges"), 128)
        return Lane(model, buckets, **options)

    return make
