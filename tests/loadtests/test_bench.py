"""A comparison with measuring replaced: the order of rounds, and what becomes of a peer that fails."""

import argparse
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtests import bench
from loadtests.bench import PEERS, compare, write
from loadtests.peers.base import Peer
from loadtests.peers.ours import Padserve
from loadtests.report import Comparison

Calls = list[str]


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    task = bench.TASKS["embed"]
    fake = replace(task, alone=lambda model, given: [[1.0]] * len(given))
    monkeypatch.setitem(bench.TASKS, "embed", fake)
    for name in ("naive", "mosec"):
        monkeypatch.setattr(type(PEERS[name]()), "prepare", lambda self, task, model: None)
    return argparse.Namespace(
        task="embed", mix="short", dtype="float32", rounds=2, seconds=1.0, clients=[4], patience=0
    )


def measuring(calls: Calls, fails: str = "") -> Any:
    def measure(
        options: argparse.Namespace, task: object, peer: Peer, given: object, expected: object, found: Comparison
    ) -> None:
        calls.append(peer.name)
        if peer.name == fails:
            raise RuntimeError("it broke")
        found.add(peer.name, 4, {"requests_per_s": 10.0, "p50_ms": 1.0, "p99_ms": 2.0, "disturbed": False})

    return measure


def test_servers_take_turns_in_each_round(monkeypatch: pytest.MonkeyPatch, options: argparse.Namespace) -> None:
    calls: Calls = []
    monkeypatch.setattr(bench, "measure", measuring(calls))
    naive, mosec = PEERS["naive"](), PEERS["mosec"]()
    found = compare(options, Padserve(), [naive, mosec])
    assert calls == ["padserve", naive.name, mosec.name] * 2
    assert len(found.rates["padserve", 4]) == 2
    assert not found.failed


def test_a_peer_that_fails_is_left_out_from_then_on(
    monkeypatch: pytest.MonkeyPatch, options: argparse.Namespace, tmp_path: Path
) -> None:
    calls: Calls = []
    naive, mosec = PEERS["naive"](), PEERS["mosec"]()
    monkeypatch.setattr(bench, "measure", measuring(calls, fails=naive.name))
    found = compare(options, Padserve(), [naive, mosec])
    assert calls == ["padserve", naive.name, mosec.name, "padserve", mosec.name]
    assert found.failed == {naive.name: "it broke"}
    assert f"{naive.name} failed: it broke" in write(found, tmp_path / "new/out.md")
    assert (tmp_path / "new/out.svg").read_text().startswith("<svg")
    assert "| padserve | 4 | 10.0 |" in (tmp_path / "new/out.md").read_text()


def test_a_fault_of_padserve_ends_the_comparison(monkeypatch: pytest.MonkeyPatch, options: argparse.Namespace) -> None:
    monkeypatch.setattr(bench, "measure", measuring([], fails="padserve"))
    with pytest.raises(RuntimeError, match="it broke"):
        compare(options, Padserve(), [])


@pytest.mark.parametrize("name", ["naive", "onnxruntime-int8"])
def test_other_answers_are_told_and_measured_only_of_a_peer_that_may_give_them(
    monkeypatch: pytest.MonkeyPatch, options: argparse.Namespace, name: str
) -> None:
    monkeypatch.setattr(bench, "served", lambda peer, task, dtype: nullcontext("http://x"))
    monkeypatch.setattr(bench, "fault", lambda *given: "cosine 0.9")
    monkeypatch.setattr(bench, "undisturbed", lambda call, patience: {"requests_per_s": 1.0})
    peer, found = PEERS[name](), Comparison("")
    if peer.exact:
        with pytest.raises(RuntimeError, match=r"cosine 0\.9"):
            bench.measure(options, bench.TASKS["embed"], peer, ["a"], [], found)
        assert not found.rates
    else:
        bench.measure(options, bench.TASKS["embed"], peer, ["a"], [], found)
        assert found.differing == {peer.name: "cosine 0.9"}
        assert len(found.rates[peer.name, 4]) == 1
