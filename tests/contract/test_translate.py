"""/translate and /summarize over HTTP against transformers alone, for every kind of multilingual checkpoint."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers

from tests.contract.replies import only, problem, served
from tests.contract.server import Server, free_port, launch, write_config
from tests.generate.translators import KINDS, save

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
TEXT = "the quick brown fox jumps over a lazy dog"
KNOWN = {"nllb": ("fra_Latn", "deu_Latn"), "mbart": ("fr_XX", "de_DE"), "mbart50": ("fr_XX", "de_DE")}
KNOWN |= {"m2m100": ("fr", "de"), "nllb-legacy": ("fra_Latn", "deu_Latn")}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    for kind, folder in made.items():
        save(kind, folder)
    return made


@pytest.fixture(scope="module")
def running(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder, port = tmp_path_factory.mktemp("translating"), free_port()
    models = [{"name": name, "source": path} for name, path in folders.items()]
    server = launch(folder, write_config(folder / "padserve.toml", {"port": port}, models), port=port)
    try:
        yield server.wait_ready()
    finally:
        code = server.terminate()
    assert code == 0, server.output[-4000:]


@pytest.fixture(scope="module")
def client(running: Server) -> Iterator[httpx.Client]:
    with running.client() as session:
        yield session


class Stock:
    """transformers alone, whose tokenizer is set to a language as its documentation says."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.model.generation_config.max_length = None

    @torch.inference_mode()
    def generate(self, text: str, source: str | None = None, **options: Any) -> list[int]:
        if source is not None:
            self.tokenizer.src_lang = source
        given = self.tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        tokens: list[int] = self.model.generate(**given, **({"do_sample": False} | options))[0].tolist()
        start = len(options["decoder_input_ids"][0]) if "decoder_input_ids" in options else 1
        tokens = tokens[start:]
        end = self.model.config.eos_token_id
        return tokens[: tokens.index(end) + 1] if end in tokens else tokens

    def text(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))

    def language(self, code: str) -> int:
        ids = getattr(self.tokenizer, "lang_code_to_id", None)
        return int(ids[code] if ids else self.tokenizer.convert_tokens_to_ids(code))


@pytest.fixture(scope="module")
def stocks(folders: dict[str, Path]) -> dict[str, Stock]:
    return {name: Stock(folder) for name, folder in folders.items()}


def ask(client: httpx.Client, model: str, inputs: Any, route: str = "/translate", **options: Any) -> httpx.Response:
    body = {"model": model, "inputs": inputs, "details": True, "max_new_tokens": 10} | options
    return client.post(route, json={name: value for name, value in body.items() if value is not None})


def output(reply: httpx.Response) -> dict[str, Any]:
    entry: dict[str, Any] = only(reply)["outputs"][0]
    return entry


def target_options(stock: Stock, model: str, code: str) -> dict[str, Any]:
    token = stock.language(code)
    return {"decoder_start_token_id": token} if model == "mbart" else {"forced_bos_token_id": token}


@pytest.mark.parametrize("model", KNOWN)
def test_tokens_are_those_of_transformers(client: httpx.Client, stocks: dict[str, Stock], model: str) -> None:
    stock, (french, german) = stocks[model], KNOWN[model]
    found = []
    for source, target in ((french, german), (german, french)):
        want = stock.generate(TEXT, source, max_new_tokens=10, **target_options(stock, model, target))
        for route in ("/translate", "/generate"):
            got = output(ask(client, model, TEXT, route, source_lang=source, target_lang=target))
            assert got["token_ids"] == want
            assert got["text"] == stock.text(want)
        found.append(want)
    assert found[0] != found[1]
    iso = ask(client, model, TEXT, source_lang="fra", target_lang="de-DE")
    assert output(iso)["token_ids"] == found[0]
    assert only(iso)["tokens"] == len(stock.tokenizer(TEXT)["input_ids"])
    beams = output(ask(client, model, TEXT, source_lang=french, target_lang=german, num_beams=3))
    options = target_options(stock, model, german)
    assert beams["token_ids"] == stock.generate(TEXT, french, max_new_tokens=10, num_beams=3, **options)


@pytest.mark.parametrize("model", KNOWN)
def test_a_target_prefix_follows_the_language(client: httpx.Client, stocks: dict[str, Stock], model: str) -> None:
    stock, (french, german) = stocks[model], KNOWN[model]
    prefix = stock.tokenizer("lazy dog", add_special_tokens=False)["input_ids"]
    head = [stock.language(german)] if model == "mbart" else [2, stock.language(german)]
    start = torch.tensor([[*head, *prefix]])
    want = stock.generate(
        TEXT, french, max_new_tokens=8, decoder_input_ids=start, decoder_start_token_id=int(start[0, 0])
    )
    options = {"source_lang": french, "target_lang": german, "max_new_tokens": 8}
    got = output(ask(client, model, TEXT, target_prefix="lazy dog", **options))
    assert got["token_ids"] == want
    assert got["text"] == stock.text([*prefix, *want])
