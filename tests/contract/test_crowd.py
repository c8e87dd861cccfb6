"""Results alone, in a list and in a crowd of clients are the same; nothing is lost or mixed up."""

import asyncio
import random
from typing import Any

import httpx
import pytest

from tests.tasks.conftest import CORPUS

from .conftest import Running

WORDS = " ".join(CORPUS).split()
LENGTHS = (1, 2, 7, 13, 16, 25, 31)


def text(rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.choice(LENGTHS)))


def body(rng: random.Random) -> tuple[str, dict[str, Any]]:
    one = text(rng)
    return rng.choice(
        [
            ("/embed", {"inputs": [one, text(rng)], "truncate": True}),
            ("/classify", {"inputs": one, "truncate": True, "model": "classes"}),
            ("/classify", {"inputs": {"text": one, "text_pair": text(rng)}, "truncate": True, "model": "nli"}),
            ("/token-classify", {"inputs": [text(rng), one], "stride": 8}),
            ("/fill-mask", {"inputs": "<mask> " + one, "top_k": 2, "truncate": True}),
            ("/zero-shot", {"inputs": one, "labels": ["law", "art"], "truncate": True}),
            ("/rerank", {"query": "post", "documents": [one, text(rng)], "truncate": True, "model": "cross"}),
            ("/similarity", {"inputs": {"source": one, "sentences": [text(rng)]}, "truncate": True}),
            ("/tokenize", {"inputs": one, "model": "nli"}),
        ]
    )


def near(got: Any, want: Any) -> None:
    """Equal, numbers within 1e-4."""
    if isinstance(want, dict):
        assert got.keys() == want.keys()
        for key in want:
            near(got[key], want[key])
    elif isinstance(want, list):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            near(one, other)
    elif isinstance(want, float):
        assert got == pytest.approx(want, abs=1e-4)
    else:
        assert got == want


async def test_a_thousand_mixed_requests_of_64_clients_equal_their_results_alone(server: Running) -> None:
    rng = random.Random(17)
    requests = [body(rng) for _ in range(100)]
    alone = [server.post(route, given).json() for route, given in requests]
    order = [index % len(requests) for index in range(1000)]
    rng.shuffle(order)
    waiting = iter(order)

    async with httpx.AsyncClient(base_url=server.base, timeout=60, limits=httpx.Limits(max_connections=64)) as client:

        async def one_client() -> None:
            for index in waiting:
                route, given = requests[index]
                reply = await client.post(route, json=given)
                assert reply.status_code == 200, reply.text
                near(reply.json(), alone[index])

        await asyncio.gather(*(one_client() for _ in range(64)))
    assert server.metric("padserve_queue_depth") == 0


async def test_clients_that_leave_take_their_work_along(server: Running) -> None:
    given = {"inputs": [" ".join(WORDS[:30])] * 20, "stride": 4}
    async with httpx.AsyncClient(base_url=server.base) as client:
        for _ in range(10):
            tasks = [asyncio.create_task(client.post("/token-classify", json=given)) for _ in range(20)]
            await asyncio.sleep(0.03)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    until = asyncio.get_running_loop().time() + 20
    while server.metric("padserve_queue_depth") and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(0.1)
    state = (server.client.get("/models/ner").text, server.client.get("/readyz").text, server.log.read_text()[-2000:])
    assert server.metric("padserve_queue_depth") == 0, state
    assert server.post("/embed", {"inputs": "still here"}).status_code == 200
