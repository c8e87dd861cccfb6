"""``padserve run``: whole runs over files, and runs that are killed and gone on with."""

import asyncio
import contextlib
import csv
import itertools
import json
import logging
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from padserve.cli.answers import Answers
from padserve.cli.files import open_source
from padserve.cli.flow import Flow
from padserve.cli.main import main
from padserve.cli.output import SUFFIX
from padserve.cli.progress import Progress
from padserve.cli.rows import Group, Item, Rows, grouped, together
from padserve.core import Timings, Usage
from padserve.errors import EngineDown, InputTooLong, PadserveError
from padserve.service.service import Reply
from padserve.tasks.base import ItemError
from padserve.tasks.table import get_task
from padserve.tasks.tokenize import TokenizeResult
from tests.tasks.conftest import labels, save

ONE_THREAD = ("--workers", "1", "--threads", "1")
WORDS = "the capital of france is paris and passports are renewed at the post office".split()
PATIENCE_S = 20.0
PRELOADED = [
    "padserve.cli.run",
    "padserve.models.load",
    "transformers.models.auto.modeling_auto",
    "transformers.models.bert.modeling_bert",
    "transformers.models.bert.tokenization_bert",
]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("classifier")
    save(folder, "wordpiece", "AutoModelForSequenceClassification", labels(["one", "two", "three"]))
    return str(folder)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("embedder")
    save(folder, "wordpiece", "AutoModel", {})
    return str(folder)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No configuration from outside; the logging that the command sets up ends with the test."""
    monkeypatch.delenv("PADSERVE_CONFIG", raising=False)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def texts(count: int, seed: int = 1) -> list[str]:
    """Texts of very different lengths."""
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.choice((1, 3, 8, 30)))) for _ in range(count)]


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


def run(task: str, source: str | Path, output: str | Path, model: str, *more: str) -> int:
    return main(["run", task, "--input", str(source), "--output", str(output), "--model", model, *ONE_THREAD, *more])


def read(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.read_text().splitlines()]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on standard error of a command that ends with status 2."""
    capsys.readouterr()
    assert main(["run", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("padserve: ")
    assert captured.err.count("\n") == 1
    return captured.err


def same(left: Any, right: Any) -> bool:
    """Equal, numbers within what the make-up of a batch changes in float32."""
    if isinstance(left, float):
        return bool(left == pytest.approx(right, abs=1e-5))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


# Files


def test_jsonl_in_order_with_ids_and_errors_in_their_places(
    tmp_path: Path, classifier: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = texts(100)
    rows: list[Any] = [{"text": text, "id": f"d{index}", "topk": 1} for index, text in enumerate(given)]
    rows[3] = "only a string"
    rows[5] = {"inputs": "the capital", "text": "not used", "id": 5, "top_k": 1}
    rows[7] = {"id": "d7"}
    rows[9] = {"text": "the capital", "top_k": "3"}
    rows[11] = {"text": " ".join(WORDS * 9), "id": ["long"]}
    rows[12] = {"text": " ".join(WORDS * 9), "truncate": True}
    rows[13] = {"inputs": ["the", "capital"]}
    rows[14] = {"text": "the", "text_pair": "capital"}
    rows[15] = {"inputs": {"text": "the", "text_pair": "capital"}}
    lines = [json.dumps(row) for row in rows]
    lines[17], lines[19], lines[21] = '{"text": ', '{"text": "\\ud800"}', "17"
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\xef\xbb\xbf" + "\r\n\n".join(lines).encode())
    assert run("classify", source, tmp_path / "out.jsonl", classifier, "--id", "id", "--options", '{"top_k": 2}') == 0
    out = read(tmp_path / "out.jsonl")
    assert [line["row"] for line in out] == list(range(100))
    assert [line["id"] for line in out[:8]] == ["d0", "d1", "d2", None, "d4", 5, "d6", "d7"]
    codes = {line["row"]: line["error"]["code"] for line in out if "error" in line}
    assert codes == {
        7: "invalid_field",
        9: "invalid_field",
        11: "input_too_long",
        17: "malformed_json",
        19: "bad_encoding",
        21: "invalid_field",
    }
    assert len(out[0]["result"]["labels"]) == 2
    assert len(out[5]["result"]["labels"]) == 1
    assert out[11]["id"] == ["long"]
    assert out[12]["result"]["truncated"] is True
    assert [len(result["labels"]) for result in out[13]["results"]] == [2, 2]
    assert same(out[14]["result"], out[15]["result"])
    told = capsys.readouterr().err
    assert "100 rows, 6 with an error" in told
    assert "'topk' of a row is not used; did you mean 'top_k'?" in told


def test_one_row_a_request_gives_the_same(tmp_path: Path, classifier: str) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": text} for text in texts(60)])
    assert run("classify", source, tmp_path / "many.jsonl", classifier, "--batch", "64") == 0
    assert run("classify", source, tmp_path / "one.jsonl", classifier, "--batch", "1") == 0
    assert same(read(tmp_path / "one.jsonl"), read(tmp_path / "many.jsonl"))


def test_csv_and_parquet_equal_jsonl(tmp_path: Path, embedder: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    given = [*texts(700), 'a "quoted"\nsecond line, [x]', "São Paulo"]
    columns = {"n": list(range(len(given))), "body": given, "dimensions": [4, 8] * (len(given) // 2)}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    write_jsonl(tmp_path / "in.jsonl", rows)
    with (tmp_path / "in.csv").open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows(rows)
    parquet.write_table(pyarrow.table({**columns, "other": given}), tmp_path / "in.parquet", row_group_size=300)
    results = []
    for kind in ("jsonl", "csv", "parquet"):
        output = tmp_path / f"{kind}.out"
        assert run("embed", tmp_path / f"in.{kind}", output, embedder, "--field", "body", "--id", "n") == 0
        results.append(read(output))
        keep = len(output.read_bytes()) * 2 // 3
        output.write_bytes(output.read_bytes()[:keep])
        assert run("embed", tmp_path / f"in.{kind}", output, embedder, "--field", "body", "--id", "n") == 0
        assert same(read(output), results[-1])
    assert [line["n"] for line in results[0]] == columns["n"]
    assert [len(line["result"]["embedding"]) for line in results[0][:2]] == [4, 8]
    assert [line["n"] for line in results[1]] == [str(n) for n in columns["n"]]
    assert same([line["result"] for line in results[1]], [line["result"] for line in results[0]])
    assert same(results[2], results[0])


def test_bad_rows_of_csv(tmp_path: Path, classifier: str) -> None:
    source = tmp_path / "in.csv"
    source.write_bytes(b"text,top_k,text_pair\nthe,2,\n\nthe,many,\nthe\n\xff,1,\nthe,1,paris,more\n,,\nthe,,capital\n")
    assert run("classify", source, tmp_path / "out.jsonl", classifier) == 0
    out = read(tmp_path / "out.jsonl")
    problems = [line["error"]["code"] if "error" in line else None for line in out]
    assert problems == [None, "invalid_field", None, "bad_encoding", "invalid_field", None, None]
    assert [len(out[row]["result"]["labels"]) for row in (0, 2)] == [2, 3]
    assert out[6]["result"]["tokens"] > out[2]["result"]["tokens"]


def test_nulls_and_bytes_of_parquet(tmp_path: Path, classifier: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"text": [b"the capital", None, b"\xff"], "top_k": [1, 2, None]})
    parquet.write_table(table, tmp_path / "in.parquet")
    assert run("classify", tmp_path / "in.parquet", tmp_path / "out.jsonl", classifier) == 0
    good, missing, torn = read(tmp_path / "out.jsonl")
    assert len(good["result"]["labels"]) == 1
    assert (missing["error"]["code"], torn["error"]["code"]) == ("invalid_field", "bad_encoding")


def test_parquet_without_its_package(
    tmp_path: Path, classifier: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    says = refused(capsys, "classify", "--input", str(tmp_path / "in.parquet"), "--output", "-", "--model", classifier)
    assert "pip install 'padserve[batch]'" in says


def test_tasks_whose_input_is_no_text(tmp_path: Path, embedder: str) -> None:
    documents = ["paris is the capital", "the post office"]
    rows = [{"query": "passports", "documents": documents, "top_k": 1}, {"query": "paris", "documents": documents}]
    source = write_jsonl(tmp_path / "in.jsonl", [*rows, "paris", {"query": "no documents"}])
    assert run("rerank", source, tmp_path / "out.jsonl", embedder) == 0
    first, second, text, partial = read(tmp_path / "out.jsonl")
    assert (len(first["results"]), len(second["results"])) == (1, 2)
    assert [line["error"]["code"] for line in (text, partial)] == ["invalid_field", "invalid_field"]
    given = json.dumps({"documents": documents})
    strings = write_jsonl(tmp_path / "strings.jsonl", ["passports", {"text": "paris"}])
    assert run("rerank", strings, tmp_path / "strings.out", embedder, "--options", given) == 0
    assert same(read(tmp_path / "strings.out")[1]["results"], second["results"])
    (tmp_path / "in.csv").write_text('source,sentences\npassports,"[""paris"", ""office""]"\n')
    assert run("similarity", tmp_path / "in.csv", tmp_path / "similar.out", embedder) == 0
    assert len(read(tmp_path / "similar.out")[0]["result"]["scores"]) == 2
    zero = write_jsonl(tmp_path / "zero.jsonl", ["passports"])
    assert run("zero-shot", zero, tmp_path / "zero.out", embedder, "--options", '{"labels": ["a", "b"]}') == 0
    assert len(read(tmp_path / "zero.out")[0]["result"]["labels"]) == 2


def test_a_file_without_rows(tmp_path: Path, classifier: str) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"\n\n")
    assert run("classify", tmp_path / "in.jsonl", tmp_path / "out.jsonl", classifier) == 0
    assert (tmp_path / "out.jsonl").read_bytes() == b""


def test_long_lines_are_never_held_whole(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'"a"\n"' + b"x" * 300_000 + b'"\n"b"\n' + b'"' + b"y" * 2000)
    source = open_source(str(path), "jsonl", 1000)
    rows = [row for block in source.blocks(0, ()) for row in block.rows]
    source.close()
    assert [row.index for row in rows] == [0, 1, 2, 3]
    assert (rows[0].record, rows[2].record) == ("a", "b")
    for row in (rows[1], rows[3]):
        assert row.record.code == "body_too_large"
        assert row.size <= 70_000


# What is wrong from the start


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["frobnicate", "--input", "in.jsonl"], "no task is named 'frobnicate'; known are fill-mask, classify"),
        (["classify", "--input", "nowhere.jsonl"], "'nowhere.jsonl': cannot be read: No such file"),
        (["classify", "--input", "."], "give --format"),
        (["classify", "--input", ".", "--format", "jsonl"], "Is a directory"),
        (["classify", "--input", "in.txt"], "give --format jsonl or csv or parquet"),
        (["classify", "--input", "in.jsonl", "--format", "xml"], "no such format"),
        (["classify", "--input", "-", "--format", "parquet"], "standard input"),
        (["classify", "--input", "not.parquet"], "not a Parquet file"),
        (["classify", "--input", "empty.csv"], "the file is empty"),
        (["classify", "--input", "twice.csv"], "names the column 'a' twice"),
        (["classify", "--input", "other.csv"], "no column is named 'inputs' or 'text'; name one of a, body"),
        (["classify", "--input", "other.csv", "--field", "bodi"], "did you mean body?"),
        (["classify", "--input", "other.csv", "--field", "body", "--id", "c"], "--id 'c': there is no such column"),
        (["classify", "--input", "in.jsonl", "--id", "row"], "rename the column"),
        (["classify", "--input", "in.jsonl", "--options", "{"], "--options: expected a JSON object"),
        (["classify", "--input", "in.jsonl", "--options", '{"topk": 1}'], "did you mean top_k?"),
        (["classify", "--input", "in.jsonl", "--options", '{"top_k": "1"}'], "top_k: Expected `int"),
        (["classify", "--input", "in.jsonl", "--options", '{"inputs": "a"}'], "the inputs are the rows"),
        (["classify", "--input", "in.jsonl", "--options", '{"model": "x"}'], "no model is named 'x'"),
        (["rerank", "--input", "in.jsonl", "--field", "q"], "a row of /rerank has query and documents"),
        (["classify", "--input", "in.jsonl", "--batch", "0"], "--batch: expected a whole number from 1"),
        (["classify", "--input", "in.jsonl", "--dtype", "int1"], "dtype"),
        (["classify", "--input", "in.jsonl", "--inputs", "x"], "did you mean --input?"),
        (["classify", "--input", "in.jsonl", "--output", "no/folder"], "cannot be written: No such file"),
        (["classify", "--input", "in.jsonl", "--output", "in.jsonl"], "it is the input"),
        (["embed", "--input", "in.jsonl"], "no model serves embed"),
        (["classify"], "--input"),
    ],
)
def test_what_is_wrong_is_one_line_and_status_2(
    tmp_path: Path,
    classifier: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "in.jsonl", ["the capital"])
    contents = {
        "empty.csv": "",
        "twice.csv": "a,a\n1,2\n",
        "other.csv": "a,body\n1,2\n",
        "not.parquet": "a",
        "in.txt": "",
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    before = (tmp_path / "in.jsonl").read_bytes()
    task, *flags = arguments
    assert says in refused(capsys, task, "--output", "out.jsonl", *flags, "--model", classifier)
    assert (tmp_path / "in.jsonl").read_bytes() == before


def test_the_configuration_may_come_last(tmp_path: Path, classifier: str) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", ["the capital"])
    config = tmp_path / "padserve.toml"
    config.write_text(f'[server]\nworkers = 1\nthreads = 1\n[[models]]\nname = "m"\nsource = "{classifier}"\n')
    output = tmp_path / "out.jsonl"
    assert main(["run", "classify", "--input", str(source), "--output", str(output), str(config)]) == 0
    assert len(read(output)) == 1


# Going on


def test_any_torn_end_is_cut_and_nothing_is_lost(
    tmp_path: Path, classifier: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": text, "id": text[:5]} for text in texts(40)])
    output = tmp_path / "out.jsonl"
    assert run("classify", source, output, classifier, "--id", "id") == 0
    whole, expected = output.read_bytes(), read(output)
    for keep in (0, 1, len(whole) // 2, whole.rindex(b"\n", 0, -1) + 1, len(whole) - 1):
        output.write_bytes(whole[:keep])
        assert run("classify", source, output, classifier, "--id", "id") == 0
        assert same(read(output), expected)
    capsys.readouterr()
    written = output.stat().st_mtime_ns
    assert run("classify", source, output, classifier, "--id", "id") == 0
    assert "all 40 rows are done already" in capsys.readouterr().err
    assert output.stat().st_mtime_ns == written


def test_an_output_of_something_else_is_never_touched(
    tmp_path: Path, classifier: str, embedder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", texts(20))
    output = tmp_path / "out.jsonl"
    assert run("tokenize", source, output, classifier) == 0
    output.write_bytes(output.read_bytes()[:-10])
    kept = output.read_bytes()
    other = write_jsonl(tmp_path / "other.jsonl", texts(20, seed=2))
    arguments = ("--output", str(output), "--model")
    for given, says in (
        (("tokenize", "--input", str(other), *arguments, classifier), "another input"),
        (("tokenize", "--input", str(source), *arguments, embedder), "it was begun with models"),
        (("classify", "--input", str(source), *arguments, classifier), 'begun with task "tokenize", now "classify"'),
        (("tokenize", "--input", str(source), *arguments, classifier, "--dtype", "bfloat16"), "with models"),
        (("tokenize", "--input", str(source), *arguments, classifier, "--options", '{"truncate":true}'), "options"),
        (("tokenize", "--input", str(source), *arguments, classifier, "--id", "n"), "with id null"),
        (("tokenize", "--input", "/dev/null", "--format", "jsonl", *arguments, classifier), "cannot be resumed"),
    ):
        assert says in refused(capsys, *given)
        assert output.read_bytes() == kept
    foreign = tmp_path / "letters.txt"
    foreign.write_text("dear all\n")
    given = ("tokenize", "--input", str(source), "--output", str(foreign), "--model", classifier)
    assert "not begun by this command" in refused(capsys, *given)
    Path(f"{foreign}{SUFFIX}").write_bytes(Path(f"{output}{SUFFIX}").read_bytes())
    assert "line 1 is not row 0" in refused(capsys, *given)
    assert foreign.read_text() == "dear all\n"
    assert run("tokenize", other, output, embedder, "--overwrite") == 0
    assert [line["row"] for line in read(output)] == list(range(20))


@pytest.fixture(scope="module", autouse=True)
def start() -> Iterator[Callable[..., BaseProcess]]:
    """``start(arguments, stdin, stdout, stderr)``: the command in a process of its own, cheaply forked.

    What it is forked from imports all that is heavy, beside the tests that come first.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()
    started: list[BaseProcess] = []

    def begin(arguments: list[str], stdin: str = "", stdout: str = "", stderr: str = "") -> BaseProcess:
        code = "import os, sys\nfrom padserve.cli.main import main\n"
        for path, flags, stream in (
            (stdin, "RDONLY", "stdin"),
            (stdout, "WRONLY", "stdout"),
            (stderr, "RDWR", "stderr"),
        ):
            if path:
                code += f"os.dup2(os.open({path!r}, os.O_{flags} | os.O_CREAT), sys.{stream}.fileno())\n"
        process = context.Process(target=exec, args=(f"{code}sys.exit(main({arguments!r}))", {}))
        process.start()
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.join()


def wait_until(condition: Callable[[], bool], process: BaseProcess) -> bool:
    """Whether it happened before the process ended."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        if not process.is_alive():
            return condition()
        time.sleep(0.001)
    return True


def test_killed_at_random_times_equals_an_uninterrupted_run(
    tmp_path: Path, classifier: str, start: Callable[..., BaseProcess]
) -> None:
    rows: list[Any] = [{"text": text, "id": index} for index, text in enumerate(texts(4000))]
    rows[100] = rows[2000] = {"id": "bad"}
    source = write_jsonl(tmp_path / "in.jsonl", rows)
    whole, output = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    more = ("--id", "id", "--batch", "8")
    assert run("classify", source, whole, classifier, *more) == 0
    arguments = ["run", "classify", "--input", str(source), "--output", str(output), "--model", classifier, *ONE_THREAD]
    chance, kills = random.Random(5), 0
    for share in sorted(chance.random() for _ in range(3)):
        target = int(share * whole.stat().st_size)
        process = start([*arguments, *more])
        if not wait_until(lambda size=target: output.exists() and output.stat().st_size > size, process):  # type: ignore[misc]
            break
        process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
        with output.open("r+b") as file:
            file.truncate(output.stat().st_size - chance.randrange(150))
    assert kills >= 2
    assert run("classify", source, output, classifier, *more) == 0
    assert same(read(output), read(whole))


def test_a_signal_ends_it_cleanly_and_no_two_runs_write_one_output(
    tmp_path: Path, classifier: str, start: Callable[..., BaseProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": text} for text in texts(20_000)])
    output, told = tmp_path / "out.jsonl", tmp_path / "stderr"
    arguments = ["classify", "--input", str(source), "--output", str(output), "--model", classifier, *ONE_THREAD]
    process = start(["run", *arguments], stderr=str(told))
    assert wait_until(lambda: output.exists() and output.stat().st_size > 10_000, process)
    assert "another run is writing it" in refused(capsys, *arguments)
    process.terminate()
    process.join(PATIENCE_S)
    assert process.exitcode == 1
    written = read(output)
    assert [line["row"] for line in written] == list(range(len(written)))
    assert output.read_bytes().endswith(b"\n")
    assert f"stopped by SIGTERM; {len(written):,} rows are done, the same command goes on" in told.read_text()


def test_standard_input_to_standard_output(tmp_path: Path, classifier: str, start: Callable[..., BaseProcess]) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", ["the capital", {"text": "of france"}, 5])
    out, told = tmp_path / "stdout", tmp_path / "stderr"
    arguments = ["run", "classify", "--input", "-", "--output", "-", "--model", classifier, *ONE_THREAD]
    process = start(arguments, stdin=str(source), stdout=str(out), stderr=str(told))
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    assert [sorted(line) for line in read(out)] == [["result", "row"], ["result", "row"], ["error", "row"]]
    assert "3 rows, 1 with an error" in told.read_text()


def test_rows_come_out_while_a_pipe_is_open(tmp_path: Path, classifier: str, start: Callable[..., BaseProcess]) -> None:
    pipe, out = tmp_path / "pipe", tmp_path / "stdout"
    os.mkfifo(pipe)
    arguments = ["run", "classify", "--input", "-", "--output", "-", "--model", classifier, *ONE_THREAD]
    process = start(arguments, stdin=str(pipe), stdout=str(out))
    with pipe.open("w") as file:
        file.write('"the capital"\n"of fra')
        file.flush()
        assert wait_until(lambda: out.exists() and out.read_bytes().endswith(b"\n"), process)
        assert len(read(out)) == 1
        process.terminate()
        process.join(PATIENCE_S)
    assert process.exitcode == 1


# Parts


def items(count: int) -> list[Item]:
    rows = Rows(get_task("tokenize"), {}, None, None, texts=False)
    return [Item(index, rows.request(str(index)), None, 100) for index in range(count)]


async def of(groups: list[Group]) -> AsyncIterator[Group]:
    for group in groups:
        yield group


async def test_groups_are_written_in_order_and_few_are_under_way() -> None:
    chance = random.Random(3)
    under_way, most, written = 0, 0, []

    async def work(group: Group) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(chance.randrange(20)):
            await asyncio.sleep(0)
        return group.items[0].index

    async def write(group: Group, answer: int) -> None:
        nonlocal under_way
        under_way -= 1
        assert group.items[0].index == answer
        written.append(answer)

    flow = Flow(work, write, lambda group: 10, 70)
    await flow.process(of([Group([item], 0) for item in items(200)]))
    assert written == list(range(200))
    assert 2 <= most <= 7


async def test_a_stop_writes_what_is_done_up_to_the_first_gap() -> None:
    written: list[int] = []

    async def work(group: Group) -> None:
        if group.items[0].index == 5:
            flow.stop()
            await asyncio.sleep(PATIENCE_S)

    async def write(group: Group, answer: None) -> None:
        written.append(group.items[0].index)

    flow = Flow(work, write, lambda group: 1, 8)
    async with asyncio.timeout(PATIENCE_S):
        await flow.process(of([Group([item], 0) for item in items(20)]))
    assert written == list(range(5))


async def test_what_was_read_is_written_before_a_reading_error_is_raised() -> None:
    written: list[int] = []

    async def broken() -> AsyncIterator[Group]:
        yield Group(items(1), 0)
        raise OSError("the disk is gone")

    async def work(group: Group) -> None:
        await asyncio.sleep(0.01)

    async def write(group: Group, answer: None) -> None:
        written.append(group.items[0].index)

    with pytest.raises(OSError, match="the disk is gone"):
        await Flow(work, write, lambda group: 1, 8).process(broken())
    assert written == [0]


class Pretender:
    """A service that fails as it is told: ``fails(inputs)`` gives the error of a request or of an input."""

    def __init__(self, fails: Callable[[str | list[str]], Exception | None]) -> None:
        self.fails = fails
        self.asked: list[str | list[str]] = []

    async def run(self, task: Any, request: Any, context: Any) -> Reply:
        assert request.priority == "bulk"
        self.asked.append(request.inputs)
        if (error := self.fails(request.inputs)) is not None:
            raise error
        many = request.inputs if isinstance(request.inputs, list) else [request.inputs]
        results: list[Any] = []
        for text in many:
            problem = self.fails(text)
            result = TokenizeResult(ids=[int(text)], tokens=[text], offsets=None, truncated=False)
            results.append(ItemError.of(problem) if isinstance(problem, PadserveError) else result)
        return Reply("m", results, Usage(input_tokens=len(many)), Timings())


async def answered(fails: Callable[[Any], Exception | None], count: int = 4) -> tuple[list[Any], Pretender]:
    service = Pretender(fails)
    answers = Answers(service, get_task("tokenize"))  # type: ignore[arg-type]
    answer = await answers.of(Group(items(count), 0))
    return [out["error"].code if "error" in out else out["result"].ids[0] for out in answer.outcomes], service


async def test_each_row_gets_its_own_error() -> None:
    outcomes, service = await answered(lambda given: InputTooLong(9, 5) if given == "2" else None)
    assert outcomes == [0, 1, "input_too_long", 3]
    assert len(service.asked) == 1
    outcomes, service = await answered(lambda given: InputTooLong(9, 5))
    assert outcomes == ["input_too_long"] * 4
    assert len(service.asked) == 5


async def test_an_unexpected_error_is_its_rows_alone(caplog: pytest.LogCaptureFixture) -> None:
    outcomes, _ = await answered(lambda given: KeyError("bug") if "1" in given else None)
    assert outcomes == [0, "internal_error", 2, 3]
    assert "row 1: unexpected error" in caplog.text


async def test_a_row_whose_worker_died_is_tried_again() -> None:
    deaths = itertools.count()
    outcomes, service = await answered(
        lambda given: EngineDown("died", retry_after_s=0) if given == "2" and next(deaths) < 2 else None
    )
    assert outcomes == [0, 1, 2, 3]
    assert service.asked == [["0", "1", "2", "3"], "2", "2"]
    outcomes, _ = await answered(lambda given: EngineDown("died", retry_after_s=0) if "2" in given else None)
    assert outcomes == [0, 1, "engine_down", 3]


def test_only_rows_of_one_shape_share_a_request() -> None:
    rows = Rows(get_task("classify"), {"top_k": 2}, None, None, texts=False)
    given: list[Any] = ["a", {"text": "b"}, 5, {"text": "c", "top_k": 1}, {"text": "d", "top_k": 1}]
    given += [{"inputs": ["e", "f"]}, "g", "h", "i", "j"]
    made = []
    for index, record in enumerate(given):
        try:
            made.append(Item(index, rows.request(record), None, 1))
        except PadserveError as error:
            made.append(Item(index, error, None, 1))
    groups = list(grouped(made, 3, 0))
    assert [[item.index for item in group.items] for group in groups] == [[0, 1, 2], [3, 4], [5], [6, 7, 8], [9]]
    joined = together([made[3].request, made[4].request])  # type: ignore[list-item]
    assert (len(joined.inputs), joined.top_k) == (2, 1)  # type: ignore[attr-defined]


def test_progress_in_plain_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("padserve.cli.progress.LINE_EVERY_S", 0.0)
    progress = Progress(total=1000, rows=50, errors=1)
    with progress.shown():
        progress.advance(10, 0, 100, 500)
        progress.advance(10, 1, 100, 750)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("padserve: 60 rows, 1 with an error, ")
    assert "tokens/s, 75 %, 00:00 left" in second
    assert progress.summary().startswith("70 rows, 2 with an error, 50 of them earlier; 200 tokens in ")


def test_progress_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as stack:
        monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
        progress = Progress(total=1000, rows=0, errors=0)
        stack.enter_context(progress.shown())
        progress.advance(10, 0, 100, 500)
    told = capsys.readouterr().err
    assert "10 rows" in told
    assert "50% |" in told
