"""/generate and /translate over HTTP against `transformers.generate` alone: text, tokens, streams, aborts, errors."""

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers

from tests.contract.metrics import total
from tests.contract.pending import sent, wait_for
from tests.contract.replies import only, problem, served
from tests.contract.server import Server, free_port, launch, write_config
from tests.generate.models import CAUSAL, SEQ2SEQ, randomize
from tests.models.conftest import WORDS, train_tokenizer

WINDOW = 128
SPECULATING = ("gpt2", "marian")
MODELS = {"llama": "generate", "gpt2": "generate", "marian": "translate", "t5": "generate"}


@pytest.fixture(scope="module")
def generators(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {}
    for name in MODELS:
        folder = folders[name] = tmp_path_factory.mktemp(name)
        seq2seq = name in SEQ2SEQ
        auto = transformers.AutoModelForSeq2SeqLM if seq2seq else transformers.AutoModelForCausalLM
        config = transformers.AutoConfig.for_model(name, **(SEQ2SEQ if seq2seq else CAUSAL)[name])
        model = auto.from_config(config).eval()
        randomize(model)
        model.save_pretrained(folder)
        train_tokenizer(WINDOW).save_pretrained(folder)
    return folders


@pytest.fixture(scope="module")
def running(generators: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder, port = tmp_path_factory.mktemp("generating"), free_port()
    models = [{"name": name, "source": path} for name, path in generators.items()]
    for model in models:
        if model["name"] in SPECULATING:
            model["speculation"] = {"method": "ngram", "max_draft_tokens": 6}  # type: ignore[assignment]
    config = write_config(folder / "padserve.toml", {"port": port, "max_queue_tokens": 4000}, models)
    server = launch(folder, config, port=port)
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
    """transformers alone."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        config = transformers.AutoConfig.from_pretrained(folder)
        auto = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
        self.model = auto.from_pretrained(folder, dtype=torch.float32).eval()
        self.model.generation_config.max_length = None

    @torch.inference_mode()
    def generate(self, text: str, **options: Any) -> list[list[int]]:
        given = self.tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        found = []
        for sequence in self.model.generate(**given, **({"do_sample": False} | options)).tolist():
            tokens = sequence[1 if self.model.config.is_encoder_decoder else given["input_ids"].shape[1] :]
            end = self.model.config.eos_token_id
            found.append(tokens[: tokens.index(end) + 1] if end in tokens else tokens)
        return found

    def text(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))


@pytest.fixture(scope="module")
def stocks(generators: dict[str, Path]) -> dict[str, Stock]:
    return {name: Stock(folder) for name, folder in generators.items()}


def route_of(model: str) -> str:
    return "/translate" if model == "marian" else "/generate"


def body(model: str, inputs: Any, **options: Any) -> dict[str, Any]:
    return {"model": model, "inputs": inputs, "details": True, "max_new_tokens": 12} | options


def ask(client: httpx.Client, model: str, inputs: Any, **options: Any) -> httpx.Response:
    return client.post(route_of(model), json=body(model, inputs, **options))


def events(reply: httpx.Response) -> list[tuple[str, dict[str, Any]]]:
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in reply.text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def random_text(rng: random.Random, most: int = 30) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randrange(1, most)))


@pytest.mark.parametrize("model", MODELS)
def test_greedy_and_beams(client: httpx.Client, stocks: dict[str, Stock], model: str) -> None:
    texts = ["the quick brown fox", "seven wizards", "a lazy dog over the iron pot while every neighbour mix"]
    for options in ({}, {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 2.0}):
        reply = ask(client, model, texts, **options)
        entries, tokens = served(reply, 3), 0
        for text, entry in zip(texts, entries, strict=True):
            want = stocks[model].generate(text, max_new_tokens=12, **options)
            assert [output["token_ids"] for output in entry["outputs"]] == want
            assert [output["text"] for output in entry["outputs"]] == [stocks[model].text(one) for one in want]
            assert ("score" in entry["outputs"][0]) == bool(options)
            tokens += sum(len(one) for one in want)
        assert reply.json()["usage"]["output_tokens"] == tokens
        assert reply.json()["usage"]["input_tokens"] == sum(entry["tokens"] for entry in entries)


def test_32_mixed_requests_at_once_equal_generate_alone(running: Server, stocks: dict[str, Stock]) -> None:
    rng = random.Random(5)
    wanted: list[tuple[dict[str, Any], list[list[int]]]] = []
    for number in range(32):
        model = list(MODELS)[number % len(MODELS)]
        options: dict[str, Any] = {"max_new_tokens": rng.randrange(1, 25)}
        extra: dict[str, Any] = rng.choice(
            [
                {},
                {"num_beams": 4},
                {"repetition_penalty": 1.3},
                {"no_repeat_ngram_size": 2},
                {"min_new_tokens": options["max_new_tokens"]},
            ]
        )
        text = random_text(rng)
        wanted.append((body(model, text, **options, **extra), stocks[model].generate(text, **options, **extra)))

    async def all_at_once() -> list[httpx.Response]:
        async with running.async_client() as session:
            return await asyncio.gather(*(session.post(route_of(one["model"]), json=one) for one, _ in wanted))

    for reply, (given, tokens) in zip(asyncio.run(all_at_once()), wanted, strict=True):
        assert [output["token_ids"] for output in only(reply)["outputs"]] == tokens[:1], given


@pytest.mark.parametrize("model", ["llama", "marian"])
def test_samples_of_a_seed_do_not_depend_on_neighbours(running: Server, client: httpx.Client, model: str) -> None:
    options = {"do_sample": True, "temperature": 1.5, "top_k": 50, "top_p": 0.95, "num_return_sequences": 2}
    texts = [random_text(random.Random(seed)) for seed in range(12)]
    alone = [only(ask(client, model, text, seed=seed, **options)) for seed, text in enumerate(texts)]

    async def crowd() -> list[httpx.Response]:
        async with running.async_client() as session:
            bodies = [body(model, text, seed=seed, **options) for seed, text in enumerate(texts)]
            return await asyncio.gather(*(session.post(route_of(model), json=one) for one in bodies))

    assert [only(reply) for reply in asyncio.run(crowd())] == alone
    assert alone[0]["outputs"][0] != alone[0]["outputs"][1]
    assert only(ask(client, model, texts[0], seed=99, **options)) != alone[0]


@pytest.mark.parametrize("model", MODELS)
def test_a_stream_adds_up(client: httpx.Client, model: str) -> None:
    plain = only(ask(client, model, "the quick brown fox", logprobs=2))
    got = events(ask(client, model, "the quick brown fox", stream=True, logprobs=2))
    assert [name for name, _ in got] == ["token"] * (len(got) - 1) + ["done"]
    done, tokens = got[-1][1], [data for name, data in got if name == "token"]
    assert done["outputs"] == plain["outputs"]
    assert "".join(data["text"] for data in tokens) == plain["outputs"][0]["text"]
    assert [data["token_id"] for data in tokens] == plain["outputs"][0]["token_ids"]
    assert [data["logprob"]["token_id"] for data in tokens] == plain["outputs"][0]["token_ids"]
    assert done["usage"]["output_tokens"] == len(tokens)


def test_a_stream_of_beams_has_its_text_at_the_end(client: httpx.Client) -> None:
    got = events(ask(client, "marian", "the quick", stream=True, num_beams=2))
    texts = "".join(data["text"] for name, data in got if name == "token")
    assert texts == got[-1][1]["outputs"][0]["text"]


def test_text_ends_before_a_stop_string(client: httpx.Client) -> None:
    whole = only(ask(client, "llama", "seven wizards"))["outputs"][0]
    stop = whole["text"][4:7]
    for given in (stop, [stop], ["never there", stop]):
        output = only(ask(client, "llama", "seven wizards", stop=given))["outputs"][0]
        assert output["text"] == whole["text"][: whole["text"].index(stop)]
        assert output["finish_reason"] == "stop"
        assert output["token_ids"] == whole["token_ids"][: len(output["token_ids"])]
    got = events(ask(client, "llama", "seven wizards", stop=stop, stream=True))
    streamed = "".join(data["text"] for name, data in got if name == "token")
    assert streamed == whole["text"][: whole["text"].index(stop)]


@pytest.mark.parametrize("more", [{"num_beams": 3}, {"echo": True}, {"do_sample": True, "seed": 3}], ids=json.dumps)
def test_stop_strings_with_beams_samples_and_an_echo(
    client: httpx.Client, stocks: dict[str, Stock], more: dict[str, Any]
) -> None:
    """The search ends at the token that completes one, also over a token's end; the prompt is not searched."""
    whole = only(ask(client, "gpt2", "seven wizards", **more))["outputs"][0]
    prompt = stocks["gpt2"].tokenizer("seven wizards")["input_ids"] if more.get("echo") else []
    start = len(stocks["gpt2"].text(prompt))
    for place in range(start + 1, len(whole["text"]) - 3, 4):
        stop = whole["text"][place : place + 3]
        got = events(ask(client, "gpt2", "seven wizards", stop=stop, stream=True, **more))
        output = got[-1][1]["outputs"][0]
        assert "".join(data["text"] for name, data in got if name == "token") == output["text"]
        assert stop not in output["text"][start:]
        if "num_beams" not in more:  # beams that end early may be others
            assert output["text"] == whole["text"][: whole["text"].index(stop, start)]
            assert output["token_ids"] == whole["token_ids"][: len(output["token_ids"])]
            assert output["finish_reason"] == "stop"


@pytest.mark.parametrize("model", MODELS)
def test_one_token_is_counted(client: httpx.Client, model: str) -> None:
    reply = ask(client, model, "seven wizards", max_new_tokens=1)
    done = events(ask(client, model, "seven wizards", max_new_tokens=1, stream=True))[-1][1]
    assert reply.json()["usage"] == done["usage"]
    assert done["usage"]["output_tokens"] == len(done["outputs"][0]["token_ids"]) == 1


def test_beams_sample(running: Server, client: httpx.Client) -> None:
    """The same alone and in a crowd; another seed, another text; temperature 0 is beam search."""
    options = {"num_beams": 3, "num_return_sequences": 2, "do_sample": True, "temperature": 1.5}
    bodies = [body("marian", "the quick brown fox", seed=seed, **options) for seed in range(8)]
    alone = [only(client.post("/translate", json=one))["outputs"] for one in bodies]

    async def crowd() -> list[httpx.Response]:
        async with running.async_client() as session:
            return await asyncio.gather(*(session.post("/translate", json=one) for one in bodies))

    assert [only(reply)["outputs"] for reply in asyncio.run(crowd())] == alone
    assert len({outputs[0]["text"] for outputs in alone}) > 4
    assert all(outputs[0]["score"] >= outputs[1]["score"] for outputs in alone)
    cold = only(ask(client, "marian", "the quick", **options | {"temperature": 0}))
    assert cold == only(ask(client, "marian", "the quick", **options | {"do_sample": False}))


def test_stop_tokens(client: httpx.Client) -> None:
    whole = only(ask(client, "gpt2", "seven wizards"))["outputs"][0]
    third = whole["token_ids"][2]
    first = whole["token_ids"].index(third)
    output = only(ask(client, "gpt2", "seven wizards", stop_token_ids=[third]))["outputs"][0]
    assert output["token_ids"] == whole["token_ids"][: first + 1]
    assert whole["text"].startswith(output["text"])
    assert output["finish_reason"] == "stop"


def test_logit_bias_bad_words_and_ignore_eos(client: httpx.Client, stocks: dict[str, Stock]) -> None:
    forced = only(ask(client, "llama", "a dog", logit_bias={"17": 1000.0}, max_new_tokens=4))["outputs"][0]
    assert forced["token_ids"] == [17] * 4
    word = stocks["llama"].tokenizer.convert_ids_to_tokens(17)
    banned = only(ask(client, "llama", "a dog", logit_bias={"17": 1000.0}, bad_words=[word]))["outputs"][0]
    assert 17 not in banned["token_ids"]
    ended = ask(client, "llama", "a dog", logit_bias={"2": 1000.0})
    assert only(ended)["outputs"][0] == {"text": "", "finish_reason": "stop", "token_ids": [2]}
    assert (
        len(only(ask(client, "llama", "a dog", logit_bias={"2": 1000.0}, ignore_eos=True))["outputs"][0]["token_ids"])
        == 12
    )


def test_presence_and_frequency_count_generated_tokens_only(client: httpx.Client) -> None:
    biased = {"logit_bias": {"17": 1000.0, "18": 999.0}, "max_new_tokens": 3}
    assert only(ask(client, "llama", "a", **biased))["outputs"][0]["token_ids"] == [17, 17, 17]
    for penalty in ("presence_penalty", "frequency_penalty"):
        tokens = only(ask(client, "llama", "a", **biased, **{penalty: 20.0}))["outputs"][0]["token_ids"]
        assert tokens[:2] == [17, 18]


def test_a_target_prefix_is_the_start_and_is_not_counted(client: httpx.Client, stocks: dict[str, Stock]) -> None:
    tokenizer = stocks["marian"].tokenizer
    prefix = tokenizer("fox", add_special_tokens=False)["input_ids"]
    reply = ask(client, "marian", "the quick", target_prefix="fox")
    output = only(reply)["outputs"][0]
    assert output["text"] == tokenizer.decode([*prefix, *output["token_ids"]], skip_special_tokens=True)
    assert reply.json()["usage"]["output_tokens"] == len(output["token_ids"]) <= 12
    given = tokenizer("the quick", return_tensors="pt", return_token_type_ids=False)
    model = stocks["marian"].model
    start = torch.tensor([[model.config.decoder_start_token_id, *prefix]])
    with torch.inference_mode():
        want = model.generate(**given, decoder_input_ids=start, max_new_tokens=12, do_sample=False)[0].tolist()
    assert want[start.shape[1] :][: len(output["token_ids"])] == output["token_ids"]
    got = events(ask(client, "marian", "the quick", target_prefix="fox", stream=True))
    assert "".join(data["text"] for name, data in got if name == "token") == output["text"]


def test_echo_gives_the_prompt_too(client: httpx.Client, stocks: dict[str, Stock]) -> None:
    plain = only(ask(client, "llama", "a dog"))["outputs"][0]
    echoed = only(ask(client, "llama", "a dog", echo=True))["outputs"][0]
    assert plain["token_ids"] == echoed["token_ids"]
    tokenizer = stocks["llama"].tokenizer
    whole = [*tokenizer("a dog")["input_ids"], *plain["token_ids"]]
    assert echoed["text"] == tokenizer.decode(whole, skip_special_tokens=True)


def test_an_absent_length_ends_at_the_window(client: httpx.Client) -> None:
    long = " ".join(["the"] * 100)
    reply = client.post("/generate", json={"model": "llama", "inputs": long, "details": True, "ignore_eos": True})
    entry = only(reply)
    assert entry["tokens"] + len(entry["outputs"][0]["token_ids"]) == WINDOW
    assert entry["outputs"][0]["finish_reason"] == "length"


def test_a_prompt_that_leaves_no_room(client: httpx.Client) -> None:
    long = " ".join(["the"] * 200)
    details = problem(ask(client, "llama", long), 422, "input_too_long")
    assert (details["length"], details["max_length"]) == (202, WINDOW - 1)
    entry = only(ask(client, "llama", long, truncate=True, max_new_tokens=3))
    assert (entry["tokens"], entry["truncated"], len(entry["outputs"][0]["token_ids"])) == (WINDOW - 1, True, 1)
    served_one, failed = ask(client, "llama", ["the", long]).json()["results"]
    assert served_one["outputs"]
    assert failed["error"]["code"] == "input_too_long"


BAD: list[dict[str, Any]] = [
    {"max_new_tokens": 0},
    {"max_new_tokens": 1.5},
    {"max_new_tokens": "5"},
    {"num_beams": 0},
    {"num_beams": 2, "num_return_sequences": 3},
    {"num_beams": 4, "num_beam_groups": 3},
    {"num_return_sequences": 2},
    {"temperature": -1},
    {"top_p": 0},
    {"top_p": 1.1},
    {"early_stopping": "always"},
    {"stop": ""},
    {"stop": [""]},
    {"seed": -1},
    {"logit_bias": {"x": 1.0}},
    {"logit_bias": {"120": 1.0}},
    {"stop_token_ids": [5000]},
    {"unknown": 1},
]


@pytest.mark.parametrize("options", BAD, ids=json.dumps)
def test_bad_fields(client: httpx.Client, options: dict[str, Any]) -> None:
    problem(ask(client, "llama", "a dog", **options), 422)
    problem(ask(client, "llama", "a dog", stream=True, **options), 422)


def test_other_refusals(client: httpx.Client) -> None:
    problem(ask(client, "llama", ["a", "b"], stream=True), 422, "invalid_field")
    problem(ask(client, "llama", []), 422, "empty_inputs")
    problem(client.post("/translate", json=body("llama", "a")), 422, "wrong_task")
    problem(client.post("/classify", json={"model": "llama", "inputs": "a"}), 422, "wrong_task")
    problem(client.post("/generate", json=body("none", "a")), 404, "unknown_model")
    problem(ask(client, "llama", "a", timeout_ms=1, max_new_tokens=100), 504, "deadline_exceeded")


def test_clients_that_leave_free_the_cache(running: Server, client: httpx.Client) -> None:
    long = body("llama", "the quick", max_new_tokens=110, ignore_eos=True, num_beams=8)
    with sent(running, "/generate", [long] * 6):
        wait_for(lambda: client.get("/models/llama").json()["running"] > 0, "a running request")
    wait_for(lambda: client.get("/models/llama").json()["blocks_used"] == 0, "a free cache", timeout_s=10)
    only(ask(client, "llama", "still here"))


def test_a_stream_that_is_left_frees_the_cache(client: httpx.Client) -> None:
    given = body("gpt2", "the quick", max_new_tokens=110, ignore_eos=True, stream=True)
    with client.stream("POST", "/generate", json=given) as reply:
        next(reply.iter_lines())
    wait_for(lambda: client.get("/models/gpt2").json()["blocks_used"] == 0, "a free cache", timeout_s=10)


def test_tokens_are_counted(client: httpx.Client) -> None:
    before = total(client, "padserve_tokens_out_total", model="llama")
    used = ask(client, "llama", "a dog").json()["usage"]["output_tokens"]
    assert total(client, "padserve_tokens_out_total", model="llama") - before == used


def test_models_tell_what_they_serve(client: httpx.Client) -> None:
    found = {model["name"]: model["tasks"] for model in client.get("/models").json()["models"]}
    assert found["marian"] == ["generate", "translate", "tokenize"] or set(found["marian"]) == {
        "generate",
        "translate",
        "tokenize",
    }
    assert set(found["llama"]) == {"generate", "tokenize"}


REPEATS = "the quick brown fox jumps over the quick brown fox jumps over the quick brown"


@pytest.mark.parametrize("model", SPECULATING)
def test_speculation_changes_the_counts_only(client: httpx.Client, stocks: dict[str, Stock], model: str) -> None:
    before = {
        name: total(client, f"padserve_speculation_{name}_total", model=model, method="ngram")
        for name in ("drafted", "accepted", "steps")
    }
    options: dict[str, Any] = {"max_new_tokens": 60, "logprobs": 2, "ignore_eos": True, "stop": ["zzz"], "num_beams": 1}
    plain = only(ask(client, model, REPEATS, speculation="off", **options))
    guessed = only(ask(client, model, REPEATS, **options))
    named = only(ask(client, model, REPEATS, speculation="ngram", max_draft_tokens=1, **options))
    assert "speculation" not in plain
    counts = guessed.pop("speculation")
    assert counts["method"] == "ngram"
    assert 0 <= counts["accepted"] <= counts["drafted"]
    assert counts["drafted"] > 0
    assert counts["accepted"] + counts["steps"] == 60
    few = named.pop("speculation")
    assert few["drafted"] <= few["steps"]
    for entry in (guessed, named):
        assert entry["outputs"][0]["token_ids"] == plain["outputs"][0]["token_ids"]
        assert entry["outputs"][0]["text"] == plain["outputs"][0]["text"]
        for one, other in zip(entry["outputs"][0]["logprobs"], plain["outputs"][0]["logprobs"], strict=True):
            assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-4)
    for name, value in before.items():
        now = total(client, f"padserve_speculation_{name}_total", model=model, method="ngram")
        assert now - value == counts[name] + few[name]
    streamed = events(ask(client, model, REPEATS, stream=True, **options))
    assert streamed[-1][1]["outputs"][0]["token_ids"] == plain["outputs"][0]["token_ids"]
    assert streamed[-1][1]["speculation"] == counts
    assert "".join(data["text"] for name, data in streamed if name == "token") == plain["outputs"][0]["text"]
    assert client.get(f"/models/{model}").json()["speculation"] == {"method": "ngram", "max_draft_tokens": 6}


def test_speculation_that_cannot_be(client: httpx.Client) -> None:
    """Named, it is refused; by default there is none."""
    for model, name, known in (("llama", "ngram", "auto, off"), ("gpt2", "eagle3", "auto, off, ngram"), ("t5", "", "")):
        found = problem(ask(client, model, "a dog", speculation=name), 422, "invalid_field")
        assert known in found["detail"]
    for options in ({"num_beams": 2}, {"do_sample": True}, {"do_sample": True, "num_return_sequences": 2}):
        assert "greedy" in problem(ask(client, "gpt2", "a dog", speculation="ngram", **options), 422)["detail"]
        assert "speculation" not in only(ask(client, "gpt2", "a dog", **options))
    assert "speculation" in only(ask(client, "gpt2", "a dog", do_sample=True, temperature=0, speculation="ngram"))
    assert "speculation" not in only(ask(client, "llama", "a dog", max_draft_tokens=4))
    for wrong in ({"max_draft_tokens": 0}, {"max_draft_tokens": 65}, {"speculation": True}):
        problem(ask(client, "gpt2", "a dog", **wrong), 422)
