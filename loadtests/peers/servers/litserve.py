"""LitServe with its own dynamic batching around a stock model."""

import os
from typing import Any

import litserve
import torch

from loadtests.peers.servers.options import options
from loadtests.peers.servers.stock import batches

MOST = 32


class Served(litserve.LitAPI):
    """``given``: the options of the command line."""

    def __init__(self, given: Any) -> None:
        self.given = given
        super().__init__(max_batch_size=MOST, batch_timeout=given.wait_ms / 1000, api_path=f"/{given.task}")

    def setup(self, device: str) -> None:
        torch.set_num_threads(len(os.sched_getaffinity(0)) // self.given.workers)
        self.run = batches(self.given.task, self.given.model, self.given.dtype)

    def batch(self, inputs: list[Any]) -> list[Any]:
        return list(inputs)

    def predict(self, bodies: list[Any]) -> list[Any]:
        return self.run(bodies)

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output


def main() -> None:
    given = options(wait_ms=float, workers=int)
    server = litserve.LitServer(Served(given), accelerator="cpu", workers_per_device=given.workers, timeout=False)
    server.run(host="127.0.0.1", port=given.port, log_level="warning", generate_client_file=False, access_log=False)


if __name__ == "__main__":
    main()
