"""Benchmarks: every contender computes what its op defines, and without a GPU there are no timings."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bench import measure, run
from bench.spec import OURS, Case, Contender, load_spec, op_names

RUN = Path(run.__file__)
OPS = op_names()
CPU = torch.device("cpu")


@pytest.fixture
def pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases are measured on the CPU by a clock that answers 1, 2, 3 ms."""
    monkeypatch.setattr(measure, "times_ms", lambda call: [1.0, 2.0, 3.0])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.filterwarnings("ignore")  # torch's, of its compiler
def test_contenders_agree_with_the_definition(op: str, device: torch.device) -> None:
    spec = load_spec(op)
    case = spec.prepare(spec.tiny, torch.float32, device)
    want = case.definition()
    assert torch.isfinite(want).all()
    assert next(iter(case.contenders)) == OURS
    assert len(case.contenders) > 1
    for contender in case.contenders.values():
        torch.testing.assert_close(contender.layout(contender.call()), want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("op", OPS)
def test_shapes_have_the_sizes_that_the_tiny_one_has(op: str) -> None:
    spec = load_spec(op)
    assert spec.shapes
    assert all(shape.keys() == spec.tiny.keys() for shape in spec.shapes)


def test_every_op_of_ours_has_a_spec() -> None:
    assert {
        "bias_gelu",
        "embedding_layer_norm",
        "masked_attention",
        "mean_pool_normalize",
        "residual_layer_norm",
        "varlen_attention",
    } <= set(OPS)


def test_without_a_gpu_it_says_so_and_writes_nothing(tmp_path: Path) -> None:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(RUN), "bias_gelu", "--results", str(tmp_path / "results")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no GPU" in done.stderr
    assert done.stdout == ""
    assert not list(tmp_path.iterdir())


def test_the_interpreter_is_not_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert run.main(["bias_gelu", "--results", str(tmp_path)]) == 1
    assert "TRITON_INTERPRET" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_unknown_op_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        run.main(["attention"])
    assert stop.value.code == 2
    assert "varlen_attention" in capsys.readouterr().err


@pytest.mark.usefixtures("pretended_gpu")
def test_what_is_wrong_is_not_timed() -> None:
    def failing() -> Tensor:
        raise RuntimeError("out of memory")

    one = torch.ones(2, 3)
    contenders = {
        OURS: Contender(lambda: one),
        "laid out": Contender(lambda: one.T, lambda output: output.T),
        "wrong": Contender(lambda: one + 1),
        "nan": Contender(lambda: one * float("nan")),
        "shaped": Contender(lambda: one[:1]),
        "failing": Contender(failing),
    }
    rows = measure.measure_case(Case(lambda: one, contenders), torch.float32, 2)
    for name in (OURS, "laid out"):
        assert rows[name]["samples"] == 6
        assert (rows[name]["p20_ms"], rows[name]["p50_ms"], rows[name]["p80_ms"]) == (1.0, 2.0, 3.0)
        assert rows[name]["max_error"] == 0.0
    for name in ("wrong", "nan", "shaped", "failing"):
        assert list(rows[name]) == ["error"]
    assert rows["failing"]["error"] == "RuntimeError: out of memory"
    lines = measure.table({"shape": {"rows": 2}, "dtype": "float32", "contenders": rows})
    assert "rows=2" in lines
    assert "out of memory" in lines


@pytest.mark.usefixtures("pretended_gpu")
def test_results_are_written_with_what_they_were_measured_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "why_not", lambda: None)
    monkeypatch.setattr(measure, "hardware", lambda: {"gpu": "none, this is a test"})
    tiny = load_spec("bias_gelu")
    small = type(tiny)((tiny.tiny,), tiny.tiny, lambda shape, dtype, device: tiny.prepare(shape, dtype, CPU))
    monkeypatch.setattr(run, "load_spec", lambda op: small)
    assert run.main(["bias_gelu", "--dtype", "float32", "float16", "--results", str(tmp_path)]) == 0
    written = json.loads((tmp_path / "bias_gelu.json").read_text())
    assert written["op"] == "bias_gelu"
    assert written["hardware"] == {"gpu": "none, this is a test"}
    assert written["versions"]["torch"] == torch.__version__
    assert [row["dtype"] for row in written["rows"]] == ["float32", "float16"]
    assert all(row["shape"] == tiny.tiny and row["contenders"][OURS]["p50_ms"] == 2.0 for row in written["rows"])
