"""CPU limits of cgroups, versions 1 and 2, read from made-up trees."""

import os
from pathlib import Path

import pytest

from padserve.config.cpus import available_cpus, cgroup_quota

V1_GROUPS = "5:memory:/x\n4:cpuset:/elsewhere\n3:cpu,cpuacct:/x\n1:name=systemd:/x\n"


def make(root: Path, files: dict[str, str]) -> Path:
    """A tree with ``proc`` and ``sys`` as the kernel shows them."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def v1(folder: str, quota: int, period: int = 100_000) -> dict[str, str]:
    base = f"sys/fs/cgroup/cpu{folder}"
    return {f"{base}/cpu.cfs_quota_us": f"{quota}\n", f"{base}/cpu.cfs_period_us": f"{period}\n"}


def v2(folder: str, limit: str) -> dict[str, str]:
    return {f"sys/fs/cgroup{folder}/cpu.max": f"{limit}\n"}


@pytest.mark.parametrize(
    ("group", "files", "cpus"),
    [
        ("/", v2("", "200000 100000"), 2.0),
        ("/", v2("", "max 100000"), None),
        ("/", {}, None),
        ("/box", v2("/box", "50000 100000"), 0.5),
        ("/pod/box", v2("/pod/box", "max 100000") | v2("/pod", "150000 100000"), 1.5),
        ("/pod/box", v2("/pod/box", "30000 20000") | v2("/pod", "400000 100000"), 1.5),
        ("/pod/box", v2("/pod/box", "400000 100000") | v2("/pod", "30000 20000"), 1.5),
        ("/made/by/the/host", v2("", "100000 100000"), 1.0),
        ("/box", v2("/box", "what is this"), None),
        ("/box", v2("/box", ""), None),
        ("/box", v2("/box", "100000 0"), None),
    ],
)
def test_version_2(tmp_path: Path, group: str, files: dict[str, str], cpus: float | None) -> None:
    root = make(tmp_path, {"proc/self/cgroup": f"0::{group}\n"} | files)
    assert cgroup_quota(root) == cpus


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        (v1("/x", 50_000), 0.5),
        (v1("/x", 75_000, 50_000), 1.5),
        (v1("/x", -1), None),
        (v1("/x", -1) | v1("", 300_000), 3.0),
        (v1("", 100_000), 1.0),
        ({}, None),
    ],
)
def test_version_1(tmp_path: Path, files: dict[str, str], cpus: float | None) -> None:
    assert cgroup_quota(make(tmp_path, {"proc/self/cgroup": V1_GROUPS} | files)) == cpus


def test_a_cpuset_is_not_a_quota(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "4:cpuset:/x\n"} | v1("/x", 50_000)
    assert cgroup_quota(make(tmp_path, files)) is None


def test_both_versions_at_once(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": f"{V1_GROUPS}0::/unified\n"} | v1("/x", 150_000)
    assert cgroup_quota(make(tmp_path, files)) == 1.5


def test_without_proc_the_root_of_the_mount_counts(tmp_path: Path) -> None:
    assert cgroup_quota(make(tmp_path, v2("", "25000 100000"))) == 0.25


def test_the_lesser_of_quota_and_affinity(tmp_path: Path) -> None:
    affinity = len(os.sched_getaffinity(0))
    small = available_cpus(make(tmp_path / "small", {"proc/self/cgroup": "0::/\n"} | v2("", "50000 100000")))
    assert (small.count, small.source) == (0.5, "cgroup quota")
    large = available_cpus(make(tmp_path / "large", {"proc/self/cgroup": "0::/\n"} | v2("", "99900000 100000")))
    assert (large.count, large.source) == (affinity, "CPU affinity")
    none = available_cpus(make(tmp_path / "none", {"proc/self/cgroup": "0::/\n"}))
    assert (none.count, none.source) == (affinity, "CPU affinity")
