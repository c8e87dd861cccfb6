"""How many CPUs this process may use: its affinity and its cgroup's quota, whichever is less."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CpuLimit:
    """``count`` may be a fraction; ``source`` says where it comes from."""

    count: float
    source: str


def available_cpus(root: Path = Path("/")) -> CpuLimit:
    """``root``: where ``proc`` and ``sys`` are."""
    affinity = float(len(os.sched_getaffinity(0)))
    quota = cgroup_quota(root)
    if quota is not None and quota < affinity:
        return CpuLimit(quota, "cgroup quota")
    return CpuLimit(affinity, "CPU affinity")


def cgroup_quota(root: Path) -> float | None:
    """CPUs that the cgroup grants, version 2 or 1; the least of the group's own and its ancestors'. None: no limit."""
    quotas = [quota for folder in _cgroup_folders(root) if (quota := _quota_in(folder)) is not None]
    return min(quotas, default=None)


def _cgroup_folders(root: Path) -> list[Path]:
    folders = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        folder = base / path.lstrip("/")
        while folder != base:
            folders.append(folder)
            folder = folder.parent
        folders.append(base)
    return folders or [root / "sys/fs/cgroup", root / "sys/fs/cgroup/cpu"]


def _quota_in(folder: Path) -> float | None:
    fields = _read(folder / "cpu.max").split()
    if not fields:
        fields = [_read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()]
    try:
        quota, period = int(fields[0]), int(fields[1])
    except (ValueError, IndexError):
        return None
    return quota / period if quota > 0 and period > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
