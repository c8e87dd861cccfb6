"""The starter set: names, folders, and what is said when a name is wrong or the package is missing."""

import importlib.util
import json
from pathlib import Path

import pytest

from padserve.errors import ConfigError
from padserve.starter.table import BUNDLED, MINILM, minilm_folder, package_folder, resolve_source, starter_models

SIZE_LIMIT = 150 * 2**20


@pytest.fixture
def without_minilm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_model_is_a_whole_checkpoint(name: str) -> None:
    folder = Path(resolve_source(f"starter:{name}"))
    assert json.loads((folder / "config.json").read_text())["architectures"]
    assert (folder / "model.safetensors").stat().st_size > 1000
    assert list(folder.glob("tokenizer*")) or list(folder.glob("vocab*"))


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_model_comes_with_its_card_and_licence(name: str) -> None:
    names = {path.name.upper() for path in Path(resolve_source(f"starter:{name}")).iterdir()}
    assert "README.MD" in names
    assert [each for each in names if each.startswith("LICENSE")]


def test_the_bundled_models_keep_the_checkout_small() -> None:
    folders = [Path(resolve_source(f"starter:{name}")) for name in BUNDLED]
    assert sum(path.stat().st_size for folder in folders for path in folder.rglob("*")) < SIZE_LIMIT


def test_the_embedding_model_is_found_in_its_package() -> None:
    if minilm_folder() is None:
        pytest.skip("the package of the embedding model is not installed")
    assert (Path(resolve_source("starter:minilm")) / "config.json").is_file()


def test_every_task_that_a_small_model_can_show_has_one() -> None:
    if minilm_folder() is None:
        pytest.skip("the package of the embedding model is not installed")
    tasks = {task for model in starter_models() for task in model["tasks"]}
    encoders = {"fill-mask", "classify", "zero-shot", "token-classify", "embed", "rerank", "similarity"}
    assert tasks - {"generate"} == encoders | {"translate"}
    assert ("generate" in tasks) == (package_folder("smollm2") is not None)


def test_every_starter_model_is_named_as_its_source_is() -> None:
    for model in starter_models():
        assert model["source"] == f"starter:{model['name']}"
        assert Path(resolve_source(model["source"])).is_dir()


@pytest.mark.parametrize("name", ["nothing", "", "MINILM", "../minilm", "fill-mask-mini/"])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_source(f"starter:{name}")
    for known in (MINILM, *BUNDLED):
        assert known in str(caught.value)


@pytest.mark.parametrize("source", ["/a/folder", "org/name", "starter", "./starter:x"])
def test_other_sources_are_left_alone(source: str) -> None:
    assert resolve_source(source) == source


@pytest.mark.usefixtures("without_minilm")
def test_without_the_package_the_others_are_served_and_the_error_says_what_to_install() -> None:
    assert {model["name"] for model in starter_models()} == set(BUNDLED)
    with pytest.raises(ConfigError, match=r"pip install 'padserve\[starter\]'"):
        resolve_source("starter:minilm")
