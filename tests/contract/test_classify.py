"""/classify against the transformers text-classification pipeline and the plain module."""

from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

from tests.contract.oracles import Oracles
from tests.contract.replies import by_label, labels_close, only, problem, served
from tests.contract.texts import mixed_texts

MODELS = ("bert-cls", "bert-multi", "bert-cross", "roberta-cls", "bert-nli", "bert-two", "scrambled-cls")
TEXT, PAIR = "Anna walks to Paris in winter.", "a cold city"


def softmax(values: dict[str, float]) -> dict[str, float]:
    powers = {label: np.exp(value) for label, value in values.items()}
    return {label: float(power / sum(powers.values())) for label, power in powers.items()}


def sigmoid(values: dict[str, float]) -> dict[str, float]:
    return {label: float(1 / (1 + np.exp(-value))) for label, value in values.items()}


ACTIVATIONS: dict[str, Callable[[dict[str, float]], dict[str, float]]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "none": dict,
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("pair", [None, PAIR], ids=["text", "pair"])
def test_auto_is_what_the_pipeline_does(client: httpx.Client, oracles: Oracles, model: str, pair: str | None) -> None:
    inputs: Any = TEXT if pair is None else {"text": TEXT, "text_pair": pair}
    expected = oracles.pipeline("text-classification", model)(inputs, top_k=None)
    for extra in ({}, {"activation": "auto"}):
        entry = only(client.post("/classify", json={"model": model, "inputs": inputs, **extra}))
        labels_close(entry, by_label(expected))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "none"])
def test_activation(client: httpx.Client, oracles: Oracles, model: str, activation: str) -> None:
    entry = only(client.post("/classify", json={"model": model, "inputs": TEXT, "activation": activation}))
    logits = oracles.classified(model, TEXT)
    labels_close(entry, ACTIVATIONS[activation](logits))


def test_an_unknown_activation(client: httpx.Client) -> None:
    problem(client.post("/classify", json={"model": "bert-cls", "inputs": TEXT, "activation": "tanh"}), 422)


@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_top_k(client: httpx.Client, oracles: Oracles, top_k: int) -> None:
    entry = only(client.post("/classify", json={"model": "bert-multi", "inputs": TEXT, "top_k": top_k}))
    labels_close(entry, by_label(oracles.pipeline("text-classification", "bert-multi")(TEXT, top_k=top_k)))


def test_top_k_over_the_labels_gives_all(client: httpx.Client) -> None:
    assert len(only(client.post("/classify", json={"model": "bert-cls", "inputs": TEXT, "top_k": 50}))["labels"]) == 4


@pytest.mark.parametrize("top_k", [0, -3, "1", 1.0, False, 10**20])
def test_top_k_out_of_bounds(client: httpx.Client, top_k: Any) -> None:
    problem(client.post("/classify", json={"model": "bert-cls", "inputs": TEXT, "top_k": top_k}), 422, "invalid_field")


@pytest.mark.parametrize("model", ["bert-cls", "roberta-cls", "modernbert-cls"])
def test_texts_and_pairs_in_one_list(client: httpx.Client, oracles: Oracles, model: str) -> None:
    texts = mixed_texts(3, 12)
    inputs: list[Any] = [
        text if index % 3 else {"text": text, "text_pair": texts[-1 - index]} for index, text in enumerate(texts)
    ]
    inputs.append({"text": TEXT})
    entries = served(client.post("/classify", json={"model": model, "inputs": inputs, "activation": "none"}), 13)
    for item, entry in zip(inputs, entries, strict=True):
        text, pair = (item, None) if isinstance(item, str) else (item["text"], item.get("text_pair"))
        labels_close(entry, oracles.classified(model, text, pair))
        assert entry["tokens"] == len(oracles.tokenizer(model)(text, pair)["input_ids"])


@pytest.mark.parametrize(
    "wrong", [{"text": "a", "pair": "b"}, {"text_pair": "b"}, {"text": None}, {"text": "a", "text_pair": 5}, ["a", 5]]
)
def test_malformed_pairs(client: httpx.Client, wrong: Any) -> None:
    problem(client.post("/classify", json={"model": "bert-cls", "inputs": wrong}), 422, "invalid_field")


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("model", ["bert-cls", "roberta-cls"])
def test_truncation_keeps_the_asked_side(client: httpx.Client, oracles: Oracles, model: str, side: str) -> None:
    text = " ".join(mixed_texts(4, 30))
    body = {"model": model, "inputs": text, "truncate": True, "truncation_side": side, "activation": "none"}
    entry = only(client.post("/classify", json=body))
    tokenizer = oracles.fresh_tokenizer(model, truncation_side=side)
    expected = oracles.run(model, tokenizer(text, truncation=True, max_length=128, return_tensors="pt"))
    labels_close(entry, oracles.named(model, expected))
    assert (entry["tokens"], entry["truncated"]) == (128, True)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("longer", ["text", "text_pair"])
@pytest.mark.parametrize("model", ["bert-cls", "roberta-cls"])
def test_of_a_pair_the_longer_side_is_cut_first(
    client: httpx.Client, oracles: Oracles, model: str, longer: str, side: str
) -> None:
    long, short = " ".join(mixed_texts(5, 40)), "a quiet evening with Boris"
    item = {"text": long, "text_pair": short} if longer == "text" else {"text": short, "text_pair": long}
    body = {"model": model, "inputs": item, "truncate": True, "truncation_side": side, "activation": "none"}
    entry = only(client.post("/classify", json=body))
    tokenizer = oracles.fresh_tokenizer(model, truncation_side=side)
    encoded = tokenizer(
        item["text"], item["text_pair"], truncation="longest_first", max_length=128, return_tensors="pt"
    )
    labels_close(entry, oracles.named(model, oracles.run(model, encoded)))


def test_an_empty_text_is_its_special_tokens(client: httpx.Client, oracles: Oracles) -> None:
    entry = only(client.post("/classify", json={"model": "bert-cls", "inputs": "", "activation": "none"}))
    labels_close(entry, oracles.classified("bert-cls", ""))
    assert entry["tokens"] == 2
