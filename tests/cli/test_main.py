"""The commands, called as a function."""

import pytest

from padserve import __version__
from padserve.cli.main import main


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert __version__ in capsys.readouterr().out


def test_models_lists_the_starter_set_without_loading_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    output = capsys.readouterr().out
    for word in ("fill-mask-mini", "BertForMaskedLM", "langid-tiny", "classify,tokenize", "512", "float32"):
        assert word in output


def test_doctor_says_what_will_be_used_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--model", "starter:langid-tiny"]) == 0
    output = capsys.readouterr().out
    for word in ("torch 2", "workers x", "threads", "langid-tiny: BertForSequenceClassification", "checked at load"):
        assert word in output


def test_a_wrong_configuration_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--model", "starter:nothing"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("padserve: ")
    assert error.count("\n") == 1
