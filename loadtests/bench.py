"""padserve against other servers: same requests, same client, one server at a time, in turn."""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from loadtests.latency import latency
from loadtests.machine import described
from loadtests.measuring import WARM_UP_S, fault, load, served, to_check, undisturbed
from loadtests.models import RESULTS
from loadtests.noisy import NEIGHBOURS_S, noisy
from loadtests.peers import small
from loadtests.peers.base import Peer
from loadtests.peers.ctranslate import CTranslate2
from loadtests.peers.infinity import Infinity
from loadtests.peers.llamacpp import LlamaCpp
from loadtests.peers.ours import Padserve
from loadtests.peers.vllm_cpu import VllmCpu
from loadtests.report import Comparison, chart, table
from loadtests.servers import NOT_INHERITED
from loadtests.tasks import TASKS, Task
from loadtests.texts import MIXES

PEERS: dict[str, Callable[[], Peer]] = {
    "naive": small.naive,
    "pipeline": small.pipeline,
    "litserve": small.litserve,
    "mosec": small.mosec,
    "onnxruntime": small.Onnxruntime,
    "onnxruntime-int8": lambda: small.Onnxruntime(int8=True),
    "infinity": Infinity,
    "infinity-optimum": lambda: Infinity(optimum=True),
    "vllm": VllmCpu,
    "vllm-untuned": lambda: VllmCpu(tuned=False),
    "llamacpp": LlamaCpp,
    "llamacpp-int8": lambda: LlamaCpp(8),
    "llamacpp-int4": lambda: LlamaCpp(4),
    "one-at-a-time": small.one_at_a_time,
    "continuous": small.continuous,
    "ctranslate2": CTranslate2,
    "ctranslate2-int8": lambda: CTranslate2(int8=True),
    "ctranslate2-one": lambda: CTranslate2(workers=1),
    "padserve-bfloat16": lambda: Padserve(name="padserve bfloat16", own_dtype="bfloat16", exact=False),
    "padserve-int8": lambda: Padserve(name="padserve int8", own_dtype="int8", exact=False),
}
DEFAULT_PEERS = ("infinity", "vllm", "pipeline", "llamacpp", "ctranslate2")


def compare(options: argparse.Namespace, ours: Peer, peers: Sequence[Peer]) -> Comparison:
    """Each server at each number of clients, in interleaved rounds. A peer that fails is left out from then on.

    Errors: those of padserve itself.
    """
    task = TASKS[options.task]
    given = task.asked(options.mix, 500)
    checked = to_check(given)
    expected = list(zip(checked, task.alone(task.model(), checked), strict=True))
    found = Comparison(about(options, task), streamed=bool(task.tokens))
    for peer in peers:
        attempt(found, peer, partial(peer.prepare, task.name, task.model()))
    for number in range(options.rounds):
        for peer in (ours, *peers):
            if peer.name not in found.failed:
                print(f"round {number + 1}, {peer.name}", flush=True)
                call = partial(measure, options, task, peer, given, expected, found)
                call() if peer is ours else attempt(found, peer, call)
    return found


def attempt(found: Comparison, peer: Peer, call: Callable[[], None]) -> None:
    """Call; when that fails, note that the peer did."""
    try:
        call()
    except (RuntimeError, OSError, LookupError, subprocess.CalledProcessError) as error:
        print(f"{peer.name} failed: {error!r}", file=sys.stderr, flush=True)
        found.failed[peer.name] = str(error)


def measure(
    options: argparse.Namespace,
    task: Task,
    peer: Peer,
    given: Sequence[Any],
    expected: Sequence[tuple[Any, Any]],
    found: Comparison,
) -> None:
    """One fresh start of a server: its answers, and then its rate with each number of clients."""
    with served(peer, task, options.dtype) as base:
        differing = fault(base, peer, task, expected, task.tolerances[options.dtype])
        if differing and peer.exact:
            raise RuntimeError(f"{peer.name}: {differing}")
        if differing:
            found.differing[peer.name] = differing
        for clients in options.clients:
            call = partial(load, base, peer, task, given, clients, options.seconds)
            measured = undisturbed(call, options.patience)
            found.add(peer.name, clients, measured)
            print(f"  {clients} clients: {measured}", flush=True)


def about(options: argparse.Namespace, task: Task) -> str:
    return (
        f"{task.name}: {task.about}, {options.dtype}, {options.mix} lengths, medians of {options.rounds} interleaved "
        f"rounds of {options.seconds:g} s, {described()}"
    )


def serving(task: str, dtype: str) -> dict[str, Peer]:
    """The peers that serve a task in a dtype, by name."""
    made = {name: make() for name, make in PEERS.items()}
    return {name: peer for name, peer in made.items() if task in peer.asks and dtype in peer.dtypes}


def chosen(names: str | None, task: str, dtype: str) -> list[Peer]:
    """``names``: separated by commas, or ``all``; when None, those of `DEFAULT_PEERS` that serve the task.

    Errors: `ValueError` for a name that is not known or does not serve it.
    """
    known = serving(task, dtype)
    if names == "all":
        return list(known.values())
    if names is None:
        return [known[name] for name in DEFAULT_PEERS if name in known]
    for name in filter(None, names.split(",")):
        if name not in known:
            why = f"does not serve {task} in {dtype}" if name in PEERS else "is no peer"
            raise ValueError(f"{name!r} {why}; those that do are {', '.join(known)}")
    return [known[name] for name in names.split(",") if name]


def write(found: Comparison, output: Path) -> str:
    """The table to ``output``, the chart beside it. Returns the table."""
    output.parent.mkdir(parents=True, exist_ok=True)
    report = table(found)
    output.write_text(report + "\n")
    output.with_suffix(".svg").write_text(chart(found))
    return f"{report}\n\n{output}, {output.with_suffix('.svg')}"


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=list(TASKS), default="embed")
    parser.add_argument("--peers", help=f"names with commas between, or all: {', '.join(PEERS)}")
    parser.add_argument("--clients", type=lambda given: [int(one) for one in given.split(",")], default=[32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--mix", default="lognormal", choices=list(MIXES))
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for a quiet machine each time")
    parser.add_argument("--install", action="store_true", help="only install the peers and make their files")
    parser.add_argument("--output", type=Path, help="of the table, a name that ends in .md; the chart goes beside it")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--latency", action="store_true", help="embed: one idle client against calling the model")
    mode.add_argument("--noisy", action="store_true", help="with and without a spinning process on each core")
    options = parser.parse_args(arguments)
    if options.seconds + WARM_UP_S > NEIGHBOURS_S:
        parser.error(f"--seconds: {NEIGHBOURS_S - WARM_UP_S:g} at most")
    if options.latency and options.task != "embed":
        parser.error("--latency: only with --task embed")
    if options.dtype not in TASKS[options.task].tolerances:
        parser.error(f"--dtype: {options.task} is compared in {', '.join(TASKS[options.task].tolerances)}")
    try:
        options.chosen = chosen(options.peers, options.task, options.dtype)
    except ValueError as error:
        parser.error(f"--peers: {error}")
    return options


def main() -> int:
    options = parsed()
    for name in NOT_INHERITED:
        os.environ.pop(name, None)  # before torch is imported: calls in this process have the servers' defaults too
    if options.install:
        for peer in options.chosen:
            peer.prepare(options.task, TASKS[options.task].model())
        return 0
    if options.latency or options.noisy:
        report = latency(options) if options.latency else noisy(options)
        print(report)
        if options.output:
            options.output.write_text(report + "\n")
        return 0
    found = compare(options, Padserve(), options.chosen)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    print(write(found, options.output or RESULTS / f"{stamp}-{options.task}-{options.mix}.md"))
    return 1 if found.failed else 0
