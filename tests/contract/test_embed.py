"""/embed against SentenceTransformer.encode."""

import base64
from typing import Any

import httpx
import numpy as np
import pytest

from tests.contract.oracles import Oracles
from tests.contract.replies import close, only, problem, results, served
from tests.contract.texts import mixed_texts

TEXT = "Greta reads a strange letter in the garden."
MODELS = pytest.mark.parametrize("model", ["st-mean", "st-dense", "st-last", "st-mpnet"])


def embed(client: httpx.Client, model: str, inputs: Any = TEXT, **options: Any) -> Any:
    entry = only(client.post("/embed", json={"model": model, "inputs": inputs, **options}))
    return entry["embedding"]


def unit(vector: Any) -> np.ndarray:
    array = np.asarray(vector, dtype=np.float64)
    return array / np.linalg.norm(array)


@MODELS
@pytest.mark.parametrize("normalize", [True, None])
def test_normalized(client: httpx.Client, oracles: Oracles, model: str, normalize: bool | None) -> None:
    options = {} if normalize is None else {"normalize": normalize}
    close(embed(client, model, **options), oracles.sentences(model).encode(TEXT, normalize_embeddings=True))


@pytest.mark.parametrize("model", ["st-dense", "st-last", "st-mpnet"])
def test_not_normalized(client: httpx.Client, oracles: Oracles, model: str) -> None:
    close(embed(client, model, normalize=False), oracles.sentences(model).encode(TEXT))


def test_normalize_wins_over_the_models_own_module(client: httpx.Client, oracles: Oracles) -> None:
    states = oracles.sentences("st-mean").encode(TEXT, output_value="token_embeddings")
    mean = np.asarray(states).mean(axis=0)
    assert abs(np.linalg.norm(mean) - 1) > 0.1
    close(embed(client, "st-mean", normalize=False), mean)


@MODELS
def test_a_list_equals_its_items_alone(client: httpx.Client, oracles: Oracles, model: str) -> None:
    texts = mixed_texts(11, 24)
    entries = served(client.post("/embed", json={"model": model, "inputs": texts}), 24)
    encoder = oracles.sentences(model)
    for text, entry in zip(texts, entries, strict=True):
        close(entry["embedding"], encoder.encode(text, normalize_embeddings=True))


@pytest.mark.parametrize(
    ("model", "normalize"), [("st-mean", True), ("st-dense", True), ("st-dense", False), ("st-mpnet", False)]
)
@pytest.mark.parametrize("dimensions", [1, 7, 24])
def test_dimensions(client: httpx.Client, oracles: Oracles, model: str, normalize: bool, dimensions: int) -> None:
    vector = embed(client, model, dimensions=dimensions, normalize=normalize)
    assert len(vector) == dimensions
    close(vector, oracles.sentences(model).encode(TEXT, truncate_dim=dimensions, normalize_embeddings=normalize))


@pytest.mark.parametrize("dimensions", [0, -1, 33, "8", 8.0, True, 10**20])
def test_dimensions_out_of_bounds(client: httpx.Client, dimensions: Any) -> None:
    body = {"model": "st-mean", "inputs": TEXT, "dimensions": dimensions}
    problem(client.post("/embed", json=body), 422, "invalid_field")


def pooled(states: np.ndarray, how: str) -> np.ndarray:
    choices = {"cls": states[0], "mean": states.mean(axis=0), "max": states.max(axis=0), "lasttoken": states[-1]}
    return np.asarray(choices[how])


@pytest.mark.parametrize("model", ["st-mean", "st-last", "st-mpnet"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "lasttoken"])
def test_pooling(client: httpx.Client, oracles: Oracles, model: str, pooling: str) -> None:
    states = np.asarray(oracles.sentences(model).encode(TEXT, output_value="token_embeddings"))
    close(embed(client, model, pooling=pooling), unit(pooled(states, pooling)))


def test_an_unknown_pooling(client: httpx.Client) -> None:
    details = problem(client.post("/embed", json={"model": "st-mean", "inputs": TEXT, "pooling": "median"}), 422)
    assert "mean" in details["detail"]


@pytest.mark.parametrize(("name", "prompt"), [("query", "find this: "), ("document", "text: ")])
def test_prompts(client: httpx.Client, oracles: Oracles, name: str, prompt: str) -> None:
    expected = oracles.sentences("st-mean").encode(TEXT, prompt_name=name)
    close(embed(client, "st-mean", prompt_name=name), expected)
    close(embed(client, "st-mean", prompt=prompt), expected)
    plain = embed(client, "st-mean")
    assert np.abs(np.asarray(plain) - expected).max() > 1e-3


def test_an_unknown_prompt_name_lists_the_known(client: httpx.Client) -> None:
    details = problem(client.post("/embed", json={"model": "st-mean", "inputs": TEXT, "prompt_name": "qery"}), 422)
    assert "query" in details["detail"]


def test_a_prompt_and_a_prompt_name_together(client: httpx.Client) -> None:
    body = {"model": "st-mean", "inputs": TEXT, "prompt": "a ", "prompt_name": "query"}
    reply = client.post("/embed", json=body)
    assert reply.status_code in (200, 422)


def test_base64_is_little_endian_float32(client: httpx.Client) -> None:
    coded = embed(client, "st-mean", encoding="base64")
    close(
        np.frombuffer(base64.b64decode(coded, validate=True), dtype="<f4"), embed(client, "st-mean", encoding="float")
    )


@MODELS
def test_int8_is_round_127_of_the_unit_vector(client: httpx.Client, oracles: Oracles, model: str) -> None:
    expected = 127 * unit(oracles.sentences(model).encode(TEXT))
    vector = embed(client, model, precision="int8")
    assert all(type(value) is int for value in vector)
    assert np.abs(np.asarray(vector) - expected).max() <= 0.5 + 127 * 1e-4
    coded = embed(client, model, precision="int8", encoding="base64")
    assert np.frombuffer(base64.b64decode(coded), dtype=np.int8).tolist() == vector


@MODELS
def test_binary_packs_sign_bits(client: httpx.Client, oracles: Oracles, model: str) -> None:
    expected = oracles.sentences(model).encode([TEXT], precision="binary")[0]
    vector = embed(client, model, precision="binary")
    assert vector == expected.tolist()
    coded = embed(client, model, precision="binary", encoding="base64")
    assert np.frombuffer(base64.b64decode(coded), dtype=np.int8).tolist() == vector


@pytest.mark.parametrize("field", ["encoding", "precision"])
@pytest.mark.parametrize("wrong", ["hex", "", 8, None, "Float"])
def test_unknown_encodings_and_precisions(client: httpx.Client, field: str, wrong: Any) -> None:
    problem(client.post("/embed", json={"model": "st-mean", "inputs": TEXT, field: wrong}), 422, "invalid_field")


def test_the_prompt_counts_against_the_limit(client: httpx.Client) -> None:
    text = "river " * 120
    assert only(client.post("/embed", json={"model": "st-mean", "inputs": text}))["tokens"] <= 128
    problem(client.post("/embed", json={"model": "st-mean", "inputs": text, "prompt": "house " * 20}), 422)


def test_a_cut_input_equals_the_cut_of_the_oracle(client: httpx.Client, oracles: Oracles) -> None:
    text = " ".join(mixed_texts(12, 40))
    for model in ("st-mean", "st-dense", "st-mpnet"):
        vector = embed(client, model, text, truncate=True)
        close(vector, oracles.sentences(model).encode(text, normalize_embeddings=True))


def test_an_embedding_that_fails_leaves_the_others(client: httpx.Client) -> None:
    good, bad = results(client.post("/embed", json={"model": "st-mean", "inputs": [TEXT, "river " * 300]}), 2)
    assert len(good["embedding"]) == 32
    assert bad["error"]["code"] == "input_too_long"
