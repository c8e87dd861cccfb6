"""The machine that figures are measured on: what it is, and whether anything else runs on it."""

import os
import platform
import sys
import time
from pathlib import Path

QUIET_CORES = 0.2


def described() -> str:
    name = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    return f"{name}, {len(os.sched_getaffinity(0))} CPUs, Python {platform.python_version()}"


def busy_cores(seconds: float = 0.5) -> float:
    """Cores in use by anyone, stolen time included, over the coming ``seconds``."""
    before, started = _busy_s(), time.perf_counter()
    time.sleep(seconds)
    return (_busy_s() - before) / (time.perf_counter() - started)


def _busy_s() -> float:
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _wait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / float(os.sysconf("SC_CLK_TCK"))


def wait_quiet(patience_s: float) -> bool:
    """Wait until nothing else runs. False, and a warning, when it still does after ``patience_s``."""
    until = time.monotonic() + patience_s
    while (busy := busy_cores()) > QUIET_CORES:
        if time.monotonic() > until:
            print(f"warning: {busy:.1f} cores are busy with something else; figures are too low", file=sys.stderr)
            return False
        time.sleep(1)
    return True
