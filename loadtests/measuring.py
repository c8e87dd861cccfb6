"""One server at a time: start it, check its answers, load it, and say whether the machine was quiet meanwhile."""

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from loadtests.machine import QUIET_CORES, busy_cores, wait_quiet
from loadtests.models import RESULTS
from loadtests.peers.base import Peer
from loadtests.servers import free_port, post, running
from loadtests.tasks import Task

WARM_UP_S = 3.0
CHECKED = 16

Measured = dict[str, Any]


@contextlib.contextmanager
def served(peer: Peer, task: Task, dtype: str) -> Iterator[str]:
    """Yields the base URL of a server that is ready. The peer is prepared."""
    RESULTS.mkdir(exist_ok=True)
    log = RESULTS / f"{peer.name.replace(' ', '-')}.log"
    port, model = free_port(), task.model()
    with running(peer.command(task.name, model, dtype, port), port, peer.ready, log, peer.environment()) as server:
        yield server.base


def load(base: str, peer: Peer, task: Task, given: Sequence[Any], clients: int, seconds: float) -> Measured:
    """Measure a server with the client in a process of its own. Errors: `RuntimeError` on any failed request."""
    ask = peer.asks[task.name]
    with tempfile.NamedTemporaryFile("wb", suffix=".jsonl") as bodies:
        bodies.write(b"\n".join(ask.encoded(asked, task.load) for asked in given))
        bodies.flush()
        client = Path(__file__).with_name("client.py")
        command = [sys.executable, str(client), "--url", base + ask.path, "--bodies", bodies.name]
        command += ["--clients", str(clients), "--seconds", str(seconds), "--warm-up", str(WARM_UP_S)]
        command += ["--tokens", str(task.tokens), "--think", str(task.think_s)]
        command += ["--stagger", str(WARM_UP_S if task.tokens else 0.0)]
        command += [part for header in ask.headers for part in ("--header", header)]
        output = subprocess.run(command, stdout=subprocess.PIPE).stdout
    if not output:
        raise RuntimeError(f"{peer.name}: the client failed")
    measured: Measured = json.loads(output)
    if measured["errors"]:
        raise RuntimeError(f"{peer.name}: {measured['errors']} requests failed: {measured['first_error']}")
    if not measured["requests"]:
        raise RuntimeError(f"{peer.name}: not one request ended within {seconds:g} s; give it more, or fewer clients")
    return measured


def undisturbed(measure: Callable[[], Measured], patience_s: float) -> Measured:
    """Measure once the machine is quiet; ``disturbed`` when something else ran before or after."""
    quiet = wait_quiet(patience_s)
    measured = measure()
    time.sleep(1)
    return {**measured, "disturbed": not quiet or busy_cores() > QUIET_CORES}


def to_check(given: Sequence[Any]) -> list[Any]:
    """The shortest, the longest, and the first of the requests."""
    return [min(given, key=len), max(given, key=len), *given[: CHECKED - 2]]


def fault(base: str, peer: Peer, task: Task, expected: Sequence[tuple[Any, Any]], tolerance: float) -> str | None:
    """How the server's answers differ from the model's, asked all at once, so that they share batches."""
    ask = peer.asks[task.name]

    def judged(pair: tuple[Any, Any]) -> str | None:
        asked, alone = pair
        return task.fault(ask.answer(post(base + ask.path, ask.encoded(asked))), alone, tolerance)

    with ThreadPoolExecutor(len(expected)) as threads:
        faults = [found for found in threads.map(judged, expected) if found]
    return f"{len(faults)} of {len(expected)} answers differ, the first: {faults[0]}" if faults else None
