"""How many device workers, and how many threads in each: from the CPU limit and a short measurement.

Workers that run whole batches with one thread need no barrier between them; threads inside an operation meet at one in
every operation, where a busy neighbour on the machine stalls all of them. Bare products, which are measured here, hide
that: on two cores one worker of two threads was up to a quarter faster at them and a third slower at serving. So the
split with most workers is taken unless another one is far better.
"""

import statistics
import threading
import time
from dataclasses import dataclass

from padserve.config.cpus import available_cpus
from padserve.config.structs import ServerConfig

ENOUGH = 0.6
"""Of the best rate: more workers are taken down to this."""
TRIALS = 3
_ROWS, _WIDTH, _INNER = 256, 384, 1536


@dataclass(frozen=True, slots=True)
class Placement:
    """``cpus``: processors that this process may use, from affinity and the cgroup's quota."""

    workers: int
    threads: int
    cpus: float
    why: str


def plan_placement(server: ServerConfig) -> Placement:
    """Workers and threads for this machine; values set in the configuration stand."""
    limit = available_cpus()
    cores = max(int(limit.count), 1)
    if server.workers and server.threads:
        return Placement(server.workers, server.threads, limit.count, "set in the configuration")
    if server.workers:
        threads = max(cores // server.workers, 1)
        return Placement(server.workers, threads, limit.count, "workers set; threads share the CPUs")
    if server.threads:
        workers = max(cores // server.threads, 1)
        return Placement(workers, server.threads, limit.count, "threads set; as many workers as the CPUs hold")
    if cores == 1:
        return Placement(1, 1, limit.count, f"one CPU ({limit.source})")
    return _measured(cores, limit.count, limit.source)


def _measured(cores: int, count: float, source: str) -> Placement:
    """Try the splits of the cores in turn; of those that are fast enough, the one with most workers."""
    splits = [(cores // threads, threads) for threads in _divisors(cores)]
    trials = [[measure_rate(*split) for split in splits] for _ in range(TRIALS)]
    rates = {split: statistics.median(seen) for split, seen in zip(splits, zip(*trials, strict=True), strict=True)}
    best = max(rates.values())
    workers, threads = max(split for split, rate in rates.items() if rate >= ENOUGH * best)
    shown = ", ".join(f"{w}x{t} {rate:.0f}" for (w, t), rate in rates.items())
    return Placement(workers, threads, count, f"{count:g} CPUs ({source}); GFLOP/s by workers x threads: {shown}")


def _divisors(cores: int) -> list[int]:
    return sorted({threads for threads in (1, 2, 4, 8, cores) if threads <= cores and cores % threads == 0})


def measure_rate(workers: int, threads: int, seconds: float = 0.08) -> float:
    """GFLOP/s of feed-forward products of a small encoder, all workers at once."""
    import torch

    counts = [0] * workers
    stop = threading.Event()

    def work(index: int) -> None:
        set_threads(threads)
        with torch.inference_mode():
            x, weight = torch.ones(_ROWS, _WIDTH), torch.ones(_INNER, _WIDTH)
            while not stop.is_set():
                torch.nn.functional.linear(x, weight)
                counts[index] += 1

    crew = [threading.Thread(target=work, args=(index,)) for index in range(workers)]
    for member in crew:
        member.start()
    time.sleep(seconds / 2)
    before, started = sum(counts), time.perf_counter()
    time.sleep(seconds)
    done, elapsed = sum(counts) - before, time.perf_counter() - started
    stop.set()
    for member in crew:
        member.join()
    return done * 2e-9 * _ROWS * _WIDTH * _INNER / elapsed


def set_threads(threads: int) -> None:
    """Threads inside an operation, for the calling thread: the setting is each thread's own."""
    import torch

    torch.set_num_threads(threads)
