"""Section 6: one TOML file under the environment under flags; what is wrong ends the start with a clear line."""

from pathlib import Path

import pytest

from tests.contract.replies import problem, served
from tests.contract.server import Server, free_port, launch, run_to_end, write_config

JSON = {"content-type": "application/json"}
BROKEN = {
    "unknown server key": ("[server]\nprot = 8000\n", ["prot", "port"]),
    "unknown model key": ('[[models]]\nname = "a"\nsorce = "/x"\n', ["sorce", "source"]),
    "unknown table": ("[sever]\nport = 8000\n", ["sever", "server"]),
    "unknown queue key": ("[server]\nmax_queue_token = 5\n", ["max_queue_token", "max_queue_tokens"]),
    "text for a number": ('[server]\nport = "many"\n', ["port", "many"]),
    "port out of range": ("[server]\nport = 99999\n", ["port"]),
    "no queue": ("[server]\nmax_queue_tokens = 0\n", ["max_queue_tokens"]),
    "unknown dtype": ('[[models]]\nname = "a"\nsource = "/x"\ndtype = "float33"\n', ["float33", "float32", "bfloat16"]),
    "unknown batching": ('[[models]]\nname = "a"\nsource = "/x"\nbatching = "paked"\n', ["batching", "paked"]),
    "a name twice": ('[[models]]\nname = "a"\nsource = "/x"\n[[models]]\nname = "a"\nsource = "/y"\n', ["a", "twice"]),
    "not TOML": ("[server\n", ["TOML"]),
}
ARGUMENTS = {
    "unknown flag": (["--prot", "8000"], ["--prot", "--port"]),
    "missing file": (["/none/such.toml"], ["/none/such.toml"]),
    "port that is no number": (["--port", "many"], ["port", "many"]),
    "dtype that does not exist": (["--dtype", "int4"], ["int4", "float32", "bfloat16"]),
    "flag without its value": (["--model"], ["--model"]),
}


def assert_refused(folder: Path, *arguments: str, says: list[str]) -> str:
    """What stands on standard error, its last line checked."""
    ended = run_to_end("serve", *arguments, folder=folder)
    assert ended.returncode == 2, ended
    assert "Traceback" not in ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("padserve: "), ended.stderr
    for word in says:
        assert word in last, ended.stderr
    return ended.stderr


@pytest.mark.parametrize("case", BROKEN)
def test_a_wrong_file_ends_with_one_line(tmp_path: Path, case: str) -> None:
    text, says = BROKEN[case]
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    assert assert_refused(tmp_path, str(path), says=says).count("\n") == 1


@pytest.mark.parametrize("case", ARGUMENTS)
def test_wrong_arguments_end_with_one_line(tmp_path: Path, case: str) -> None:
    arguments, says = ARGUMENTS[case]
    assert assert_refused(tmp_path, *arguments, says=says).count("\n") == 1


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    models = [{"name": "a", "source": "/none/such/folder"}]
    config = write_config(tmp_path / "padserve.toml", {"port": free_port()}, models)
    assert_refused(tmp_path, str(config), says=["/none/such/folder"])


def test_an_unknown_task_lists_the_known(folders: dict[str, Path], tmp_path: Path) -> None:
    models = [{"name": "a", "source": folders["bert-cls"], "tasks": ["classfy"]}]
    config = write_config(tmp_path / "padserve.toml", {"port": free_port()}, models)
    assert_refused(tmp_path, str(config), says=["classfy", "classify"])


def test_flags_win_over_the_environment_over_the_file(folders: dict[str, Path], tmp_path: Path) -> None:
    port = free_port()
    settings = {"port": free_port(), "max_body_bytes": 500, "max_queue_tokens": 10}
    models = [{"name": "of-the-file", "source": folders["bert-mlm"]}]
    config = write_config(tmp_path / "padserve.toml", settings, models)
    environment = {
        "PADSERVE_DTYPE": "bfloat16",
        "PADSERVE_PORT": str(free_port()),
        "PADSERVE_MAX_BODY_BYTES": "3000",
        "PADSERVE_MAX_QUEUE_TOKENS": "20",
    }
    flags = ["--port", str(port), "--max-queue-tokens", "60", "--model", f"classify={folders['bert-cls']}"]
    running = launch(tmp_path, config, *flags, port=port, environment=environment)
    try:
        running.wait_ready()
        with running.client() as client:
            listed = client.get("/models").json()["models"]
            assert [(model["name"], model["dtype"]) for model in listed] == [("bert-cls", "bfloat16")]
            served(client.post("/classify", json={"inputs": ["music " * 20, "winter " * 20]}), 2)
            problem(client.post("/classify", json={"inputs": ["music " * 30] * 2}), 413, "too_many_tokens")
            served(client.post("/classify", content=b'{"inputs": "a"' + b" " * 2_000 + b"}", headers=JSON), 1)
            problem(client.post("/classify", content=b'{"inputs": "a"' + b" " * 4_000 + b"}", headers=JSON), 413)
    finally:
        code = running.terminate()
    assert code == 0, running.output[-2000:]


def test_a_port_that_is_taken(folders: dict[str, Path], tmp_path: Path, server: Server) -> None:
    port = server.port
    models = [{"name": "bert-cls", "source": folders["bert-cls"]}]
    config = write_config(tmp_path / "padserve.toml", {"port": port}, models)
    ended = run_to_end("serve", str(config), folder=tmp_path)
    assert ended.returncode not in (0, -9)
    assert "Traceback" not in ended.stderr
    assert str(port) in ended.stderr


@pytest.mark.parametrize("command", [["models"], ["--version"]])
def test_the_other_commands(folders: dict[str, Path], tmp_path: Path, command: list[str]) -> None:
    arguments = list(command)
    if command == ["models"]:
        models = [{"name": "my-classifier", "source": folders["bert-cls"]}]
        arguments.append(str(write_config(tmp_path / "padserve.toml", {}, models)))
    ended = run_to_end(*arguments, folder=tmp_path)
    assert ended.returncode == 0, ended
    assert ended.stdout.strip()
    if command == ["models"]:
        assert "my-classifier" in ended.stdout
