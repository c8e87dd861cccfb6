"""mosec with its own dynamic batching around a stock model; its HTTP side is in Rust."""

import os
from typing import Any

import mosec
import orjson
import torch

from loadtests.peers.servers.options import options
from loadtests.peers.servers.stock import batches

MOST = 32


class Served(mosec.Worker):
    def __init__(self) -> None:
        given = options(wait_ms=float, workers=int)
        torch.set_num_threads(len(os.sched_getaffinity(0)) // given.workers)
        self.run = batches(given.task, given.model, given.dtype)

    def deserialize(self, data: bytes) -> Any:
        return orjson.loads(data)

    def serialize(self, data: Any) -> bytes:
        return orjson.dumps(data)

    def forward(self, data: list[Any]) -> list[Any]:
        return self.run(data)


def main() -> None:
    """mosec reads the command line too, and takes ``--port`` from it."""
    given = options(wait_ms=float, workers=int)
    server = mosec.Server()
    wait_ms, route = round(given.wait_ms), f"/{given.task}"
    server.append_worker(Served, num=given.workers, max_batch_size=MOST, max_wait_time=wait_ms, route=route)
    server.run()


if __name__ == "__main__":
    main()
