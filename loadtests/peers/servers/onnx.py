"""onnxruntime on an exported model: whatever waits, 32 requests at most, padded to the longest."""

import os
from pathlib import Path

import onnxruntime
from transformers import AutoConfig, AutoTokenizer

from loadtests.peers.servers.batcher import Batcher
from loadtests.peers.servers.batches import MOST, Array, Batches, Features
from loadtests.peers.servers.options import options
from loadtests.peers.servers.web import asynchronous, serve


def session(file: Path) -> onnxruntime.InferenceSession:
    """On all cores; by itself it takes one thread for two hyperthreads."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = len(os.sched_getaffinity(0))
    return onnxruntime.InferenceSession(file, settings, providers=["CPUExecutionProvider"])


def main() -> None:
    given = options(onnx=Path)
    model = session(given.onnx)

    def forward(features: Features, places: Array | None) -> Array:
        [found] = model.run(None, features)
        return found if places is None else found[range(len(places)), places]

    labels = AutoConfig.from_pretrained(given.model).id2label
    run = Batches(given.task, AutoTokenizer.from_pretrained(given.model), labels, forward)
    serve(asynchronous(given.task, Batcher(run, MOST)), given.port)


if __name__ == "__main__":
    main()
