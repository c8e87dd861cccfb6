"""llama.cpp's server on all cores: continuous batching in slots, each with an equal part of ``--tokens``."""

import argparse
import os
import signal
import threading
from pathlib import Path

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gguf", required=True, type=Path)
    parser.add_argument("--slots", required=True, type=int)
    parser.add_argument("--tokens", required=True, type=int)
    parser.add_argument("--cache", required=True, choices=["f32", "f16"])
    parser.add_argument("--port", required=True, type=int)
    given = parser.parse_args()
    settings = xllamacpp.CommonParams()
    settings.model.path = str(given.gguf)
    settings.hostnames, settings.port = ["127.0.0.1"], given.port
    settings.n_parallel, settings.n_ctx = given.slots, given.tokens
    kind = xllamacpp.ggml_type
    settings.cache_type_k = settings.cache_type_v = kind.GGML_TYPE_F32 if given.cache == "f32" else kind.GGML_TYPE_F16
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = len(os.sched_getaffinity(0))
    settings.verbosity = 1
    settings.ui = False
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    server = xllamacpp.Server(settings)
    ended.wait()
    del server


if __name__ == "__main__":
    main()
