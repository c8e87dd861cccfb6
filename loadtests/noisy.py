"""Workers x threads, with and without a spinning process on each core."""

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

from loadtests.machine import described
from loadtests.measuring import Measured, load, served, undisturbed
from loadtests.peers.ours import Padserve
from loadtests.report import median, note, spread
from loadtests.tasks import TASKS

NEIGHBOURS_S = 300.0


def noisy(options: argparse.Namespace) -> str:
    task, clients = TASKS[options.task], options.clients[0]
    given = task.asked(options.mix, 500)
    seen: dict[tuple[str, bool], list[Measured]] = {}
    for _ in range(options.rounds):
        for split in ("2x1", "1x2"):
            workers, threads = split.split("x")
            peer = Padserve({"PADSERVE_WORKERS": workers, "PADSERVE_THREADS": threads})
            with served(peer, task, options.dtype) as base:
                for busy in (False, True):
                    call = partial(beside, busy, partial(load, base, peer, task, given, clients, options.seconds))
                    measured = undisturbed(call, options.patience)
                    seen.setdefault((split, busy), []).append(measured)
                    print(f"{split}, {'with' if busy else 'no'} neighbours: {measured}", flush=True)
    head = (
        f"{task.name}, {task.about}, {clients} clients, {options.dtype}, {options.mix} lengths, medians of "
        f"{options.rounds} rounds of {options.seconds:g} s, {described()}"
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
