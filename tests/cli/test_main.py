"""The commands, called as a function."""

from pathlib import Path

import pytest

from padserve import __version__
from padserve.cli.main import main
from padserve.starter.table import BUNDLED


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PADSERVE_CONFIG", raising=False)
    monkeypatch.delenv("PADSERVE_PORT", raising=False)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on standard error of a command that ends with status 2."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("padserve: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"padserve {__version__}\n"


@pytest.mark.parametrize("command", [[], ["serve"], ["models"], ["doctor"]])
def test_help_names_what_can_be_given(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    output = capsys.readouterr().out
    for word in ("--model", "--port", "--dtype", "--uds") if command else ("serve", "run", "models", "doctor"):
        assert word in output


def test_models_lists_the_starter_set_without_loading_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    output = capsys.readouterr().out
    for word in (*BUNDLED, "BertForMaskedLM", "classify,tokenize", "512", "float32", "packed"):
        assert word in output


def test_models_of_a_file_and_of_flags(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "padserve.toml"
    path.write_text('[[models]]\nname = "languages"\nsource = "starter:langid-tiny"\nbatching = "padded"\n')
    assert main(["models", str(path), "--dtype", "bfloat16"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("languages")]
    assert line.split()[-2:] == ["bfloat16", "padded"]
    assert main(["models", str(path), "--model", "classify=starter:langid-tiny"]) == 0
    output = capsys.readouterr().out
    assert "langid-tiny" in output
    assert "languages" not in output


def test_doctor_says_what_will_be_used_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--model", "starter:langid-tiny", "--workers", "1", "--threads", "1"]) == 0
    output = capsys.readouterr().out
    words = ("torch 2", "transformers 5", "features:", "CPUs usable", "memory", "1 workers x 1 threads", "tasks:")
    for word in (*words, "langid-tiny: BertForSequenceClassification", "checked at load"):
        assert word in output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["serve", "--prot", "1"], "did you mean --port?"),
        (["serve", "--max-batch-token=5"], "did you mean --max-batch-tokens?"),
        (["serve", "--xyzzy"], "--model"),
        (["serve", "one.toml", "two.toml"], "one configuration file at most"),
        (["serve", "nowhere.toml"], "cannot read the configuration 'nowhere.toml'"),
        (["serve", "--port", "many"], "port: expected a whole number, got 'many'"),
        (["serve", "--port", "70000"], "server.port"),
        (["serve", "--model", "embed="], "TASK=SOURCE"),
        (["serve", "--model"], "--model: expected one argument"),
        (["serve", "--dtype", "int1"], "choose from float32, bfloat16, float16, int8, auto"),
        (["serve", "--host", "--port"], "--host"),
        (["frobnicate"], "'serve', 'run', 'models', 'doctor'"),
        ([], "serve | run | models | doctor"),
        (["models", "--model", "starter:nothing"], "fill-mask-mini"),
        (["models", "--model", "clasify=starter:langid-tiny"], "classify"),
        (["models", "--model", "fill-mask=starter:langid-tiny"], "masked-lm"),
        (["doctor", "--model", "/no/such/folder"], "/no/such/folder"),
    ],
)
def test_what_is_wrong_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert says in refused(capsys, *arguments)


def test_a_wrong_variable_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PADSERVE_PROT", "1")
    assert "did you mean PADSERVE_PORT?" in refused(capsys, "models")
