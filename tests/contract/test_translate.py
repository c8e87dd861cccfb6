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
from tests.generate.translators import BART_PARAMS, KINDS, T5_PARAMS, save

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


def events(reply: httpx.Response) -> list[tuple[str, dict[str, Any]]]:
    assert reply.headers["content-type"].startswith("text/event-stream"), reply.text
    blocks = [block.split("\n") for block in reply.text.strip().split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


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


def test_marks_of_marian(client: httpx.Client, stocks: dict[str, Stock]) -> None:
    stock = stocks["marian-many"]
    want = {mark: stock.generate(f">>{mark}<< {TEXT}", max_new_tokens=10) for mark in ("fra", "deu", "pt_br")}
    for given, mark in (("fr", "fra"), ("fra", "fra"), ("de-AT", "deu"), ("pt-BR", "pt_br")):
        got = ask(client, "marian-many", TEXT, target_lang=given, source_lang="en")
        assert output(got)["token_ids"] == want[mark]
        assert only(got)["tokens"] == len(stock.tokenizer(f">>{mark}<< {TEXT}")["input_ids"])
    written = f">>fra<< {TEXT}"
    assert output(ask(client, "marian-many", written))["token_ids"] == want["fra"]
    assert output(ask(client, "marian-many", written, target_lang="fr"))["token_ids"] == want["fra"]
    problem(ask(client, "marian-many", written, target_lang="de"), 422, "invalid_field")
    assert "fra, deu, pt_br" in problem(ask(client, "marian-many", TEXT), 422, "invalid_field")["detail"]


def test_a_pair_of_marian(client: httpx.Client, stocks: dict[str, Stock]) -> None:
    want = stocks["marian"].generate(TEXT, max_new_tokens=10)
    for options in ({}, {"source_lang": "en"}, {"target_lang": "de"}, {"source_lang": "eng", "target_lang": "de-DE"}):
        assert output(ask(client, "marian", TEXT, **options))["token_ids"] == want
    for options in ({"source_lang": "de"}, {"target_lang": "fr"}, {"source_lang": "en", "target_lang": "en"}):
        problem(ask(client, "marian", TEXT, **options), 422, "unknown_language")
    assert output(ask(client, "marian-group", TEXT, source_lang="fr"))["token_ids"]
    problem(ask(client, "marian-group", TEXT, source_lang="no language"), 422, "unknown_language")


def test_a_target_prefix_of_marian(client: httpx.Client, stocks: dict[str, Stock]) -> None:
    stock = stocks["marian"]
    prefix = stock.tokenizer(text_target="lazy dog", add_special_tokens=False)["input_ids"]
    start = torch.tensor([[stock.model.config.decoder_start_token_id, *prefix]])
    want = stock.generate(TEXT, max_new_tokens=8, decoder_input_ids=start)
    assert output(ask(client, "marian", TEXT, target_prefix="lazy dog", max_new_tokens=8))["token_ids"] == want


def test_prefixes_of_t5(client: httpx.Client, stocks: dict[str, Stock]) -> None:
    stock, german = stocks["t5"], f"translate English to German: {TEXT}"
    params = {"num_beams": 2, "max_length": 12}
    want = stock.generate(german, **params)
    pair = {"source_lang": "en", "target_lang": "de"}
    for options in (pair, {"target_lang": "German"}, {"source_lang": "english", "target_lang": "deu"}):
        got = ask(client, "t5", TEXT, max_new_tokens=None, **options)
        assert output(got)["token_ids"] == want
        assert only(got)["tokens"] == len(stock.tokenizer(german)["input_ids"])
    assert output(ask(client, "t5", german, max_new_tokens=None))["token_ids"] == want
    assert output(ask(client, "t5", german, max_new_tokens=None, **pair))["token_ids"] == want
    greedy = stock.generate(german, max_new_tokens=10)
    assert output(ask(client, "t5", TEXT, "/generate", **pair))["token_ids"] == greedy
    assert output(ask(client, "t5", TEXT, "/generate"))["token_ids"] == stock.generate(TEXT, max_new_tokens=10)
    other = stock.generate(f"translate French to German: {TEXT}", max_new_tokens=10)
    composed = ask(client, "t5", TEXT, source_lang="fr", target_lang="de")
    assert output(composed)["token_ids"] == other
    for options in ({}, {"source_lang": "en"}, {"target_lang": "en"}, {"source_lang": "de", "target_lang": "de"}):
        problem(ask(client, "t5", TEXT, **options), 422, "invalid_field")


def test_unknown_and_missing_languages(client: httpx.Client) -> None:
    for model, (french, _) in KNOWN.items():
        for options in ({"target_lang": "tlh"}, {"source_lang": "tlh", "target_lang": french}):
            details = problem(ask(client, model, TEXT, **options), 422, "unknown_language")
            assert french in details["languages"]
            assert french in details["detail"]
            assert details["field"] == ("source_lang" if len(options) == 2 else "target_lang")
        assert french in problem(ask(client, model, TEXT), 422, "invalid_field")["detail"]
        assert output(ask(client, model, TEXT, "/generate"))["token_ids"]
    problem(ask(client, "bart", TEXT, "/generate", target_lang="fr"), 422, "invalid_field")
    problem(ask(client, "bart", TEXT, target_lang="fr"), 422, "wrong_task")


def test_models_tell_their_languages(client: httpx.Client, running: Server) -> None:
    found = {model["name"]: set(model["tasks"]) for model in client.get("/models").json()["models"]}
    both, pure = {"generate", "tokenize", "translate", "summarize"}, {"generate", "tokenize", "translate"}
    assert found["mbart"] == found["t5"] == both
    assert found["nllb"] == found["m2m100"] == found["marian"] == pure
    assert found["bart"] == {"generate", "tokenize", "summarize"}
    assert "fra_Latn" in client.get("/models/nllb").json()["languages"]
    assert client.get("/models/t5").json()["languages"] == ["en", "de", "fr"]
    assert client.get("/models/bart").json()["languages"] == []


@pytest.mark.parametrize("model", ["t5", "bart"])
def test_summaries_by_the_checkpoints_parameters(client: httpx.Client, stocks: dict[str, Stock], model: str) -> None:
    params = dict((T5_PARAMS if model == "t5" else BART_PARAMS)["summarization"])
    given = params.pop("prefix", "") + TEXT
    want = stocks[model].generate(given, **params)
    assert output(ask(client, model, TEXT, "/summarize", max_new_tokens=None))["token_ids"] == want
    assert output(ask(client, model, given, "/summarize", max_new_tokens=None))["token_ids"] == want
    options = {"num_beams": 1, "no_repeat_ngram_size": 0, "max_new_tokens": 7}
    changed = {name: value for name, value in params.items() if name not in ("max_length", "length_penalty")} | options
    assert output(ask(client, model, TEXT, "/summarize", **options))["token_ids"] == stocks[model].generate(
        given, **{name: value for name, value in changed.items() if name != "early_stopping"}
    )
    problem(ask(client, "marian", TEXT, "/summarize"), 422, "wrong_task")


SPLIT = " the quick brown fox.  seven wizards mix their potion!\n\n\tan old iron pot\r\nevery sequence attends. "
SENTENCES = ["the quick brown fox.", "seven wizards mix their potion!", "an old iron pot", "every sequence attends."]
FRAME = " {}  {}\n\n\t{}\r\n{} "


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("nllb", {"source_lang": "fr", "target_lang": "de"}),
        ("marian", {}),
        ("marian-many", {"target_lang": "fra"}),
        ("t5", {"source_lang": "en", "target_lang": "fr"}),
    ],
)
@pytest.mark.parametrize("search", [{}, {"num_beams": 2, "num_return_sequences": 2}], ids=["greedy", "beams"])
def test_sentences_are_translated_each(
    client: httpx.Client, model: str, options: dict[str, Any], search: dict[str, Any]
) -> None:
    alone = served(ask(client, model, SENTENCES, **options, **search))
    reply = ask(client, model, SPLIT, split="sentence", **options, **search)
    got = only(reply)
    for index, joined in enumerate(got["outputs"]):
        parts = [entry["outputs"][index] for entry in alone]
        assert joined["text"] == FRAME.format(*(part["text"] for part in parts))
        assert joined["token_ids"] == [token for part in parts for token in part["token_ids"]]
        assert "score" not in joined
    assert len(got["outputs"]) == search.get("num_return_sequences", 1)
    assert got["tokens"] == sum(entry["tokens"] for entry in alone) == reply.json()["usage"]["input_tokens"]
    streamed = events(ask(client, model, SPLIT, split="sentence", stream=True, **options, **search))
    for index, joined in enumerate(streamed[-1][1]["outputs"]):
        assert joined == got["outputs"][index]
        texts = [data["text"] for name, data in streamed if name == "token" and data["index"] == index]
        assert "".join(texts) == joined["text"]
    assert streamed[-1][1]["usage"] == reply.json()["usage"]


def test_a_long_text_goes_by_sentences(client: httpx.Client) -> None:
    long = f"{TEXT}. " * 40
    problem(ask(client, "marian", long), 422, "input_too_long")
    whole = only(ask(client, "marian", long, split="sentence", max_new_tokens=3))
    assert not whole["truncated"]
    entries = ask(client, "marian", [long, "fox " * 300], split="sentence", max_new_tokens=3).json()["results"]
    assert entries[0] == whole
    assert entries[1]["error"]["code"] == "input_too_long"
    one = only(ask(client, "marian", "fox", split="sentence", num_beams=2))
    assert one == only(ask(client, "marian", "fox", num_beams=2))
    assert one["outputs"][0]["score"]
    for field in ({"stop": "a"}, {"stop_token_ids": [5]}):
        problem(ask(client, "marian", "fox", split="sentence", **field), 422, "invalid_field")
    problem(ask(client, "marian", "fox", split="words"), 422, "invalid_field")


def test_a_target_prefix_begins_the_first_sentence(client: httpx.Client) -> None:
    first, second = (
        output(ask(client, "marian", text, target_prefix=prefix))
        for text, prefix in (("the fox.", "dog"), ("a pot.", ""))
    )
    got = output(ask(client, "marian", "the fox. a pot.", target_prefix="dog", split="sentence"))
    assert got["text"] == f"{first['text']} {second['text']}"


def libre(client: httpx.Client, **body: Any) -> httpx.Response:
    return client.post("/translate", json={"source": "en", "target": "de", "model": "t5", "api_key": ""} | body)


def test_libretranslate(client: httpx.Client) -> None:
    pair = {"source_lang": "en", "target_lang": "de", "max_new_tokens": None}
    texts = [entry["outputs"][0]["text"] for entry in served(ask(client, "t5", [TEXT, "a pot"], **pair))]
    assert all(texts)
    assert libre(client, q=TEXT).json() == {"translatedText": texts[0]}
    assert libre(client, q=[TEXT, "a pot"], format="text").json() == {"translatedText": texts}
    assert libre(client, q=f" {TEXT}\n\na pot ").json() == {"translatedText": f" {texts[0]}\n\n{texts[1]} "}
    assert "server-timing" in libre(client, q="a").headers
    outputs = only(ask(client, "t5", TEXT, num_beams=3, num_return_sequences=3, **pair))["outputs"]
    got = libre(client, q=TEXT, alternatives=2).json()
    assert got["translatedText"] == outputs[0]["text"]
    assert got["alternatives"] == [output["text"] for output in outputs[1:]]
    assert libre(client, q=[TEXT], alternatives=2).json()["alternatives"] == [got["alternatives"]]
    assert libre(client, q="fox", source="auto", model="marian").json()["translatedText"]


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"source": "auto"}, 400, "detected"),
        ({"format": "html"}, 400, "html"),
        ({"format": "xml"}, 400, "text"),
        ({"target": "tlh"}, 400, "en, de, fr"),
        ({"q": 5}, 400, "q"),
        ({"q": []}, 400, "empty"),
        ({"alternatives": -1}, 400, "alternatives"),
        ({"model": "none"}, 404, "none"),
        ({"model": "bart"}, 400, "translate"),
        ({"q": ["a", "fox " * 300], "model": "marian"}, 400, "input 1"),
    ],
)
def test_errors_of_libretranslate(client: httpx.Client, body: dict[str, Any], status: int, word: str) -> None:
    reply = libre(client, **({"q": "a"} | body))
    assert reply.status_code == status, reply.text
    assert list(reply.json()) == ["error"]
    assert word in reply.json()["error"]


def test_bodies_without_q_are_native(client: httpx.Client) -> None:
    missing = client.post("/translate", json={"q": "a", "target": "de"})
    assert (missing.status_code, list(missing.json())) == (400, ["error"])
    problem(client.post("/translate", json={"source": "fr"}), 422, "invalid_field")
    for body in (b"", b"[]", b'{"q": ', b"[" * 5000):
        assert "code" in client.post("/translate", content=body).json()


def test_openapi_has_both_shapes(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    operation = document["paths"]["/translate"]["post"]
    for content, names in (
        (operation["requestBody"], ["TranslateRequest", "LibreTranslateRequest"]),
        (operation["responses"]["200"], ["GeneratingReply", "LibreTranslateReply"]),
    ):
        schema = content["content"]["application/json"]["schema"]
        assert [each["$ref"].rpartition("/")[2] for each in schema["anyOf"]] == names
        assert set(names) <= set(document["components"]["schemas"])
    assert "split" in document["components"]["schemas"]["TranslateRequest"]["properties"]
