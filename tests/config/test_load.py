"""File, environment, flags; and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from padserve.config.load import load_config
from padserve.config.structs import SpeculationConfig
from padserve.errors import ConfigError
from padserve.starter.table import BUNDLED

MODEL = '[[models]]\nsource = "/models/bert"\n'


def write(folder: Path, text: str) -> str:
    path = folder / "padserve.toml"
    path.write_text(text)
    return str(path)


def refused(path: str | None, env: dict[str, str] | None = None, models: list[str] | None = None) -> str:
    """The one line that a wrong configuration ends with."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, env or {}, models=models or ())
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "[server]\nport = 1\nworkers = 1\nmax_queue_tokens = 1\n" + MODEL)
    env = {"PADSERVE_WORKERS": "2", "PADSERVE_SERVER_MAX_QUEUE_TOKENS": "2", "PADSERVE_DTYPE": "bfloat16", "HOME": "x"}
    config = load_config(path, env, {"max_queue_tokens": "3", "host": None})
    assert (config.server.port, config.server.workers, config.server.max_queue_tokens) == (1, 2, 3)
    assert config.models[0].dtype == "bfloat16"
    assert config.models[0].name == "bert"


def test_a_flag_and_the_environment_set_a_key_of_every_model(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL + "max_wait_ms = 1\n" + MODEL + 'dtype = "float32"\n')
    env = {"PADSERVE_MAX_WAIT_MS": "2.5", "PADSERVE_DTYPE": "bfloat16"}
    config = load_config(path, env, {"dtype": "float32", "max_batch_tokens": "64"})
    assert {(model.max_wait_ms, model.dtype, model.max_batch_tokens) for model in config.models} == {
        (2.5, "float32", 64)
    }


def test_the_file_may_be_named_by_the_environment_and_an_argument_wins(tmp_path: Path) -> None:
    env = {"PADSERVE_CONFIG": write(tmp_path, "[server]\nport = 11\n")}
    assert load_config(None, env).server.port == 11
    other = tmp_path / "other.toml"
    other.write_text("[server]\nport = 12\n")
    assert load_config(str(other), env).server.port == 12


@pytest.mark.parametrize("text", ["", "models = []\n", "[server]\nport = 9\n"])
def test_the_starter_set_is_served_when_no_model_is_given(tmp_path: Path, text: str) -> None:
    assert {model.name for model in load_config(write(tmp_path, text), {}).models} >= set(BUNDLED)
    assert {model.name for model in load_config(None, {}).models} >= set(BUNDLED)


def test_models_from_flags_stand_in_for_those_of_the_file(tmp_path: Path) -> None:
    given = ["embed=/m/a", "rerank,similarity=/m/a", "/m/b", "classify=/n/b", "starter:langid-tiny", "org/hub-id"]
    models = load_config(write(tmp_path, MODEL), {}, models=given).models
    assert [(model.name, model.source, model.tasks) for model in models] == [
        ("a", "/m/a", ("embed", "rerank", "similarity")),
        ("b", "/m/b", ()),
        ("b-2", "/n/b", ("classify",)),
        ("langid-tiny", "starter:langid-tiny", ()),
        ("hub-id", "org/hub-id", ()),
    ]


@pytest.mark.parametrize("given", ["", "embed="])
def test_a_model_flag_without_a_source(given: str) -> None:
    assert "TASK=SOURCE" in refused(None, models=[given])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[server]\nprot = 1\n", ["server.prot: unknown key", "did you mean server.port?"]),
        ("[server]\nmax_queue_token = 1\n", ["did you mean server.max_queue_tokens?"]),
        ("[server]\nxyzzy = 1\n", ["server.xyzzy: unknown key", "server.port", "server.workers"]),
        ("[sever]\n", ["sever: unknown key", "did you mean server?"]),
        ("[[model]]\n", ["did you mean models?"]),
        (MODEL + 'dtyp = "float32"\n', ["models[0].dtyp: unknown key", "did you mean models[0].dtype?"]),
        (MODEL + MODEL + "defualt = true\n", ["models[1].defualt", "did you mean models[1].default?"]),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_valid_one(tmp_path: Path, text: str, says: list[str]) -> None:
    message = refused(write(tmp_path, text))
    assert [word for word in says if word not in message] == [], message


@pytest.mark.parametrize("name", ["PADSERVE_PROT", "PADSERVE_SERVER_PROT"])
def test_an_unknown_environment_variable_is_named_with_the_nearest(name: str) -> None:
    message = refused(None, {name: "1"})
    assert name in message
    assert f"did you mean {name.replace('PROT', 'PORT')}?" in message


@pytest.mark.parametrize(
    ("table", "lines", "says"),
    [
        ("generation", "max_new_token = 3\n", ["did you mean models[0].generation.max_new_tokens?"]),
        ("generation", "temperature = -1.0\n", ["models[0].generation.temperature", "it is -1.0"]),
        ("generation", "num_beams = 65\n", ["models[0].generation.num_beams"]),
        ("cache", "memory = 3\n", ["did you mean models[0].cache.memory_gb?"]),
        ("cache", "block_size = 0\n", ["models[0].cache.block_size", "it is 0"]),
    ],
)
def test_faults_in_tables_of_generating_models(tmp_path: Path, table: str, lines: str, says: list[str]) -> None:
    message = refused(write(tmp_path, f"{MODEL}[models.{table}]\n{lines}"))
    for text in says:
        assert text in message


def test_tables_of_generating_models_are_read(tmp_path: Path) -> None:
    generation, cache = "num_beams = 3\nstop = ['a', 'b']\n", "memory_gb = 0.5\nprefix_caching = false\n"
    tables = f"[models.generation]\n{generation}[models.cache]\n{cache}"
    (model,) = load_config(write(tmp_path, MODEL + tables), {}, {}).models
    assert (model.generation.num_beams, model.generation.stop, model.generation.do_sample) == (3, ("a", "b"), None)
    assert (model.cache.block_size, model.cache.memory_gb, model.cache.prefix_caching) == (16, 0.5, False)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ('method = "eagle3"\n', ["models[0].speculation.method", "eagle3", "choose from ngram"]),
        ('method = "draft"\ndraft = "small"\n', ["models[0].speculation.method", "choose from ngram"]),
        ('method = "ngram"\ndraft = "small"\n', ["models[0].speculation", "takes no draft"]),
        ('method = "ngram"\nmax_drafts = 3\n', ["did you mean models[0].speculation.max_draft_tokens?"]),
        ('method = "ngram"\nmax_draft_tokens = 0\n', ["models[0].speculation.max_draft_tokens", "it is 0"]),
        ("max_draft_tokens = 3\n", ["models[0].speculation", "method"]),
    ],
)
def test_speculation_that_is_not_served_says_what_is(tmp_path: Path, lines: str, says: list[str]) -> None:
    message = refused(write(tmp_path, f"{MODEL}[models.speculation]\n{lines}"))
    assert [word for word in says if word not in message] == [], message


def test_speculation_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, f'{MODEL}[models.speculation]\nmethod = "ngram"\nmax_draft_tokens = 3\n')
    assert load_config(str(path), {}).models[0].speculation == SpeculationConfig(method="ngram", max_draft_tokens=3)


@pytest.mark.parametrize("dtype", ["float64", "fp32", "FLOAT32", "int4"])
def test_a_dtype_that_is_not_supported_lists_those_that_are(tmp_path: Path, dtype: str) -> None:
    for message in (
        refused(write(tmp_path, f'{MODEL}dtype = "{dtype}"\n')),
        refused(write(tmp_path, MODEL), {"PADSERVE_DTYPE": dtype}),
    ):
        for word in ("dtype", dtype, "float32", "bfloat16"):
            assert word in message


SERVER_VALUES = [
    ("port", ['"80"', "80.0", "80.5", "true", "-1", "65536", "9999999999999999999999", "[80]", "{}"]),
    ("host", ["0", "true", "[]"]),
    ("max_body_bytes", ["0", "-5", "1e6", '"2000000"', "2.0"]),
    ("max_queue_tokens", ["0", "-1", "5.0", '"5"']),
    ("drain_timeout_s", ["-1", '"30"', "true", "nan", "inf", "-inf"]),
    ("workers", ["-1", "1.0", '"1"', "true"]),
    ("threads", ["-1", "2.0", "false"]),
    ("log_level", ['"loud"', "1"]),
]
MODEL_VALUES = [
    ("name", ["5", "[]"]),
    ("tasks", ['"embed"', "[5]", "{}"]),
    ("batching", ['"paked"', "true"]),
    ("max_batch_tokens", ["0", "64.0", '"64"', "true"]),
    ("buckets", ['"none"', "[0]", "[16, 32.0]", "16", '["16"]']),
    ("max_wait_ms", ["-1", '"5"', "nan", "inf"]),
    ("default", ["1", '"true"', "0.0"]),
]


def pairs(values: list[tuple[str, list[str]]]) -> list[tuple[str, str]]:
    return [(key, value) for key, several in values for value in several]


@pytest.mark.parametrize(("key", "value"), pairs(SERVER_VALUES))
def test_server_values_are_strict(tmp_path: Path, key: str, value: str) -> None:
    assert f"server.{key}" in refused(write(tmp_path, f"[server]\n{key} = {value}\n"))


@pytest.mark.parametrize(("key", "value"), pairs(MODEL_VALUES))
def test_model_values_are_strict(tmp_path: Path, key: str, value: str) -> None:
    assert f"models[0].{key}" in refused(write(tmp_path, f"{MODEL}{key} = {value}\n"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[server]\nport = "many"\n', "'many'"),
        ("[server]\nport = 70000\n", "70000"),
        (MODEL + "buckets = [16, 0]\n", "models[0].buckets[1]: Expected `int` >= 1; it is 0"),
        (MODEL + 'batching = "paked"\n', "'paked'; choose from auto, packed, padded"),
        (f'{MODEL}tasks = "{"x" * 5_000}"\n', "xxx..."),
    ],
)
def test_what_stands_there_is_shown(tmp_path: Path, text: str, says: str) -> None:
    message = refused(write(tmp_path, text))
    assert says in message
    assert len(message) < 200


def test_a_whole_number_is_a_number_of_seconds(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "[server]\ndrain_timeout_s = 5\n"), {}).server.drain_timeout_s == 5.0


@pytest.mark.parametrize("value", ["many", "80.0", "", "0x50", "-1", "65536", "nan"])
def test_numbers_of_the_environment_and_of_flags_are_checked_too(value: str) -> None:
    for env, flags in (({"PADSERVE_PORT": value}, {}), ({}, {"port": value})):
        with pytest.raises(ConfigError, match="port"):
            load_config(None, env, flags)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("server = 5\n", "[server]"),
        ("[[server]]\nport = 1\n", "[server]"),
        ('[models]\nsource = "/x"\n', "[[models]]"),
        ('models = ["/x"]\n', "[[models]]"),
        ("models = 5\n", "[[models]]"),
        ("[[models]]\nname = 'a'\n", "source"),
        ("[[models]]\nsource = ''\n", "models[0].source"),
        ("[[models]]\nsource = 5\n", "models[0].source"),
        (MODEL + 'name = "a"\n' + MODEL + 'name = "a"\n', "'a' stands twice"),
    ],
)
def test_a_table_of_another_shape(tmp_path: Path, text: str, says: str) -> None:
    assert says in refused(write(tmp_path, text))


def test_names_that_are_made_up_differ_from_those_given(tmp_path: Path) -> None:
    models: list[dict[str, Any]] = [{"source": "/a/bert"}, {"source": "/b/bert"}, {"source": "/c", "name": "bert"}]
    text = "".join("[[models]]\n" + "".join(f'{key} = "{value}"\n' for key, value in each.items()) for each in models)
    assert [model.name for model in load_config(write(tmp_path, text), {}).models] == ["bert-2", "bert-3", "bert"]


@pytest.mark.parametrize("content", [b"[server\n", b"port = \n", b"[server]\n[server]\n", b"[server]\nhost = '\xff'\n"])
def test_a_file_that_is_not_toml(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    message = refused(str(path))
    assert "not valid TOML" in message
    assert str(path) in message


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert "cannot read the configuration 'nowhere.toml'" in refused("nowhere.toml")
    assert str(tmp_path) in refused(str(tmp_path))
    assert "nowhere.toml" in refused(None, {"PADSERVE_CONFIG": "nowhere.toml"})
