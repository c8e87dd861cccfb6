"""File, environment, flags; and what is refused."""

from pathlib import Path

import pytest

from padserve.config.cpus import available_cpus, cgroup_quota
from padserve.config.load import load_config
from padserve.errors import ConfigError
from padserve.starter.table import BUNDLED, resolve_source


def write(folder: Path, text: str) -> str:
    path = folder / "padserve.toml"
    path.write_text(text)
    return str(path)


MODEL = '[[models]]\nsource = "/models/bert"\n'


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "[server]\nport = 1\nworkers = 1\nmax_queue_tokens = 1\n" + MODEL)
    env = {"PADSERVE_WORKERS": "2", "PADSERVE_SERVER_MAX_QUEUE_TOKENS": "2", "PADSERVE_DTYPE": "bfloat16", "HOME": "x"}
    config = load_config(path, env, {"max_queue_tokens": "3", "host": None})
    assert (config.server.port, config.server.workers, config.server.max_queue_tokens) == (1, 2, 3)
    assert config.models[0].dtype == "bfloat16"
    assert config.models[0].name == "bert"


def test_the_starter_set_is_served_when_nothing_is_given() -> None:
    assert {model.name for model in load_config(None, {}).models} >= set(BUNDLED)


def test_models_from_flags() -> None:
    models = load_config(None, {}, models=["embed=/m/a", "rerank,similarity=/m/a", "/m/b", "classify=/n/b"]).models
    assert [(model.name, model.tasks) for model in models] == [
        ("a", ("embed", "rerank", "similarity")),
        ("b", ()),
        ("b-2", ("classify",)),
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[server]\nprot = 1\n", r"server\.prot: unknown key; did you mean server\.port"),
        ("[sever]\n", "did you mean server"),
        (MODEL + 'dtyp = "float32"\n', r"models\[0\]\.dtyp: unknown key; did you mean models\[0\]\.dtype"),
        (MODEL + "[models.generation]\n", "encoders only"),
        (MODEL + 'dtype = "int8"\n', "not supported yet"),
        (MODEL + 'dtype = "float64"\n', "dtype"),
        ('[server]\nport = "80x"\n', "port: expected a whole number"),
        ("[server]\nport = 80.5\n", "port"),
        ("[server]\nport = 70000\n", "port"),
        ("[server]\nmax_queue_tokens = 0\n", "max_queue_tokens"),
        ("[server\n", "not valid TOML"),
        (MODEL + 'name = "a"\n' + MODEL + 'name = "a"\n', "stands twice"),
        ("[[models]]\nname = 'a'\n", "source"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        load_config(write(tmp_path, text), {})
    assert "\n" not in str(caught.value).strip().replace("\n", "", 0) or "TOML" in str(caught.value)


def test_unknown_environment_variables_are_named() -> None:
    with pytest.raises(ConfigError, match="did you mean PADSERVE_PORT"):
        load_config(None, {"PADSERVE_PROT": "1"})


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"cannot read the configuration 'nowhere\.toml'"):
        load_config("nowhere.toml", {})


def test_unknown_starter_models_list_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="minilm, fill-mask-mini, langid-tiny, pii-ner-mini"):
        resolve_source("starter:nothing")
    assert resolve_source("/a/folder") == "/a/folder"


def make(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_cgroup_quotas(tmp_path: Path) -> None:
    v2 = {"proc/self/cgroup": "0::/pod/box\n", "sys/fs/cgroup/pod/cpu.max": "150000 100000\n"}
    assert cgroup_quota(make(tmp_path / "2", v2 | {"sys/fs/cgroup/pod/box/cpu.max": "max 100000\n"})) == 1.5
    v1 = {
        "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/x\n",
        "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
    }
    root = make(tmp_path / "1", v1)
    assert cgroup_quota(root) == 0.5
    assert available_cpus(root).count == 0.5
    assert available_cpus(root).source == "cgroup quota"
    assert cgroup_quota(make(tmp_path / "none", {"proc/self/cgroup": "0::/\n"})) is None
