"""What one kind of request costs another on the same server: times of the one alone, and beside the other.

prefill   the first token of a short prompt, while prompts of 4,000 tokens are taken in one after the other
classify  p99 of /classify, while 8 streams generate (padserve: the other servers have one model each)

python loadtests/mixed.py prefill --peers vllm,llamacpp --rounds 3 --seconds 30
python loadtests/mixed.py classify --rounds 3 --seconds 15
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from loadtests.bench import PEERS
from loadtests.generating import Passage, passages
from loadtests.machine import described
from loadtests.measuring import WARM_UP_S, Measured, load, served, undisturbed
from loadtests.peers.base import Peer
from loadtests.peers.llamacpp import LlamaCpp
from loadtests.peers.ours import Padserve
from loadtests.report import median, note
from loadtests.tasks import TASKS, Task
from loadtests.texts import texts

LONG_WORDS = 4000  # of one token each
SHORT_TOKENS = 8
STREAMS = 8


@dataclass(frozen=True, slots=True)
class Load:
    """``key``: the figure of a measurement that counts."""

    task: Task
    given: Sequence[Any]
    clients: int
    key: str = "first_p50_ms"


@dataclass(frozen=True, slots=True)
class BothModels(Padserve):
    """padserve with a classifier and a decoder."""

    name: str = "padserve"
    settings: Mapping[str, str] = field(default_factory=dict)

    def command(self, task: str, model: Path, dtype: str, port: int) -> list[str]:
        more = ("--model", f"generate={TASKS['generate'].model()}")
        return [*Padserve.command(self, task, model, dtype, port), *more]


def mixes(kind: str) -> tuple[Load, Load]:
    """What is measured, and what it is measured beside."""
    generate = replace(TASKS["generate"], tokens=SHORT_TOKENS)
    if kind == "classify":
        streams = Load(TASKS["generate"], passages("lognormal", 500, TASKS["generate"].tokens), STREAMS)
        return Load(TASKS["classify"], texts("lognormal", 500), 1, "p99_ms"), streams
    return Load(generate, passages("short", 500, SHORT_TOKENS), 1), Load(generate, long_prompts(), 1)


def long_prompts(count: int = 50) -> list[Passage]:
    words = " ".join(texts("long", 40 * count)).split()
    return [Passage(" ".join(words[LONG_WORDS * at : LONG_WORDS * (at + 1)]), SHORT_TOKENS) for at in range(count)]


def peer_of(name: str) -> Peer:
    """llama.cpp shares its window out among its slots: here few long ones."""
    peer = PEERS[name]()
    return replace(peer, slots=4) if isinstance(peer, LlamaCpp) else peer


def alone_and_beside(options: argparse.Namespace, peer: Peer, seen: dict[tuple[str, bool], list[Measured]]) -> None:
    """One fresh start of a server."""
    front, behind = mixes(options.kind)
    with served(peer, front.task, options.dtype) as base, ThreadPoolExecutor(1) as thread:
        for busy in (False, True):
            other = partial(load, base, peer, behind.task, behind.given, behind.clients, options.seconds + WARM_UP_S)

            def measure(busy: bool = busy, other: partial[Measured] = other) -> Measured:
                background = thread.submit(other) if busy else None
                measured = load(base, peer, front.task, front.given, front.clients, options.seconds)
                if background is not None:
                    background.result()
                return measured

            measured = undisturbed(measure, options.patience)
            seen.setdefault((peer.name, busy), []).append(measured)
            print(f"  {'beside' if busy else 'alone'}: {measured}", flush=True)


def report(options: argparse.Namespace, seen: Mapping[tuple[str, bool], Sequence[Measured]], key: str) -> str:
    title = {"first_p50_ms": "first token p50 ms", "p99_ms": "p99 ms"}[key]
    lines = [
        f"{options.kind}, {options.dtype}, medians of {options.rounds} rounds of {options.seconds:g} s, {described()}",
        "",
        f"| server | {title} alone | beside | ratio |",
        "|---|---|---|---|",
    ]
    for name in dict.fromkeys(name for name, _ in seen):
        alone, beside = (median(seen[name, busy], key) for busy in (False, True))
        lines.append(f"| {name} | {alone:.1f} | {beside:.1f} | {beside / alone:.2f} |")
    return "\n".join([*lines, note(one for measured in seen.values() for one in measured)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["prefill", "classify"])
    parser.add_argument("--peers", default="", help="with prefill: names with commas between, of those that generate")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--patience", type=float, default=60.0)
    options = parser.parse_args()
    peers: list[Peer] = [Padserve() if options.kind == "prefill" else BothModels()]
    peers += [peer_of(name) for name in options.peers.split(",") if name]
    front, _ = mixes(options.kind)
    for peer in peers:
        peer.prepare(front.task.name, front.task.model())
    seen: dict[tuple[str, bool], list[Measured]] = {}
    for number in range(options.rounds):
        for peer in peers:
            print(f"round {number + 1}, {peer.name}", flush=True)
            alone_and_beside(options, peer, seen)
    print(report(options, seen, front.key))
    return 0


if __name__ == "__main__":
    sys.exit(main())
