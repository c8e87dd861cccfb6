"""/rerank against sentence-transformers: CrossEncoder, and cosine for embedding models."""

from typing import Any

import httpx
import numpy as np
import pytest
import torch

from tests.contract.oracles import Oracles
from tests.contract.replies import best_first, close, problem, results, served
from tests.contract.texts import mixed_texts

QUERY = "who builds a bridge in Prague?"
DOCUMENTS = mixed_texts(8, 12)
CROSS = pytest.mark.parametrize("model", ["bert-cross", "roberta-cross"])
COSINE = pytest.mark.parametrize("model", ["st-mean", "st-dense", "st-mpnet"])


def scores(entries: list[dict[str, Any]]) -> list[float]:
    """Scores in the order of the documents; the reply's own order is checked to be best first."""
    best_first([entry["score"] for entry in entries])
    ordered = sorted(entries, key=lambda entry: entry["index"])
    assert [entry["index"] for entry in ordered] == list(range(len(entries)))
    return [entry["score"] for entry in ordered]


def rerank(client: httpx.Client, model: str, **options: Any) -> list[dict[str, Any]]:
    body = {"model": model, "query": QUERY, "documents": DOCUMENTS, **options}
    return served(client.post("/rerank", json=body))


@CROSS
def test_cross_encoder(client: httpx.Client, oracles: Oracles, model: str) -> None:
    expected = [oracles.cross(model).predict([(QUERY, document)])[0] for document in DOCUMENTS]
    close(scores(rerank(client, model)), expected)
    close(scores(rerank(client, model, activation="auto")), expected)


@CROSS
@pytest.mark.parametrize("activation", ["none", "sigmoid"])
def test_activation(client: httpx.Client, oracles: Oracles, model: str, activation: str) -> None:
    function = torch.nn.Identity() if activation == "none" else torch.nn.Sigmoid()
    pairs = [(QUERY, document) for document in DOCUMENTS]
    expected = oracles.cross(model).predict(pairs, activation_fn=function)
    close(scores(rerank(client, model, activation=activation)), expected)


@COSINE
def test_embedding_model(client: httpx.Client, oracles: Oracles, model: str) -> None:
    encoder = oracles.sentences(model)
    prompts = encoder.prompts
    query = encoder.encode(QUERY, normalize_embeddings=True, prompt=prompts.get("query"))
    documents = encoder.encode(DOCUMENTS, normalize_embeddings=True, prompt=prompts.get("document"))
    close(scores(rerank(client, model)), np.asarray(documents @ query))


@pytest.mark.parametrize("top_k", [1, 5, 12, 100])
def test_top_k_keeps_the_best(client: httpx.Client, top_k: int) -> None:
    everything = rerank(client, "bert-cross")
    kept = rerank(client, "bert-cross", top_k=top_k)
    assert [entry["index"] for entry in kept] == [entry["index"] for entry in everything[:top_k]]
    close([entry["score"] for entry in kept], [entry["score"] for entry in everything[:top_k]])


@pytest.mark.parametrize("top_k", [0, -1, "2", 2.0, True, 10**20])
def test_top_k_out_of_bounds(client: httpx.Client, top_k: Any) -> None:
    body = {"model": "bert-cross", "query": QUERY, "documents": DOCUMENTS, "top_k": top_k}
    problem(client.post("/rerank", json=body), 422, "invalid_field")


@pytest.mark.parametrize("model", ["bert-cross", "st-mean"])
def test_documents_are_returned_only_when_asked(client: httpx.Client, model: str) -> None:
    assert not [entry for entry in rerank(client, model) if "document" in entry]
    for entry in rerank(client, model, return_documents=True):
        assert entry["document"] == DOCUMENTS[entry["index"]]


def test_one_document_need_not_be_a_list(client: httpx.Client) -> None:
    body = {"model": "bert-cross", "query": QUERY, "documents": DOCUMENTS[0]}
    assert [entry["index"] for entry in served(client.post("/rerank", json=body), 1)] == [0]


@CROSS
@pytest.mark.parametrize("side", ["right", "left"])
def test_only_the_document_is_cut(client: httpx.Client, oracles: Oracles, model: str, side: str) -> None:
    long = " ".join(mixed_texts(9, 40))
    entries = rerank(client, model, documents=[long, "short"], truncate=True, truncation_side=side, activation="none")
    cut = next(entry for entry in entries if entry["index"] == 0)
    tokenizer = oracles.fresh_tokenizer(model, truncation_side=side)
    encoded = tokenizer(QUERY, long, truncation="only_second", max_length=128, return_tensors="pt")
    assert cut["score"] == pytest.approx(float(oracles.run(model, encoded)[0]), abs=1e-4)
    assert (cut["tokens"], cut["truncated"]) == (128, True)


@pytest.mark.parametrize("model", ["bert-cross", "st-mean"])
def test_a_query_that_alone_fills_the_model(client: httpx.Client, model: str) -> None:
    body = {"model": model, "query": "river " * 200, "documents": DOCUMENTS}
    problem(client.post("/rerank", json=body), 422)


def test_a_query_that_alone_fills_the_cross_encoder_is_never_cut(client: httpx.Client) -> None:
    body = {"model": "bert-cross", "query": "river " * 200, "documents": DOCUMENTS, "truncate": True}
    problem(client.post("/rerank", json=body), 422)


@pytest.mark.parametrize("model", ["bert-cross", "st-mean"])
def test_a_failing_document_comes_last(client: httpx.Client, model: str) -> None:
    body = {"model": model, "query": QUERY, "documents": [DOCUMENTS[0], "river " * 300, *DOCUMENTS[1:4]]}
    entries = results(client.post("/rerank", json=body), 5)
    assert entries[-1]["index"] == 1
    assert entries[-1]["error"]["code"] == "input_too_long"
    best_first([entry["score"] for entry in entries[:-1]])


@pytest.mark.parametrize("field", ["query", "documents"])
@pytest.mark.parametrize("wrong", [5, None, {"text": "a"}, [5], True])
def test_wrong_types(client: httpx.Client, field: str, wrong: Any) -> None:
    body = {"model": "bert-cross", "query": QUERY, "documents": DOCUMENTS} | {field: wrong}
    problem(client.post("/rerank", json=body), 422, "invalid_field")


def test_inputs_is_not_a_field_of_rerank(client: httpx.Client) -> None:
    problem(client.post("/rerank", json={"query": QUERY, "inputs": DOCUMENTS}), 422, "invalid_field")


def test_equal_documents_get_equal_scores(client: httpx.Client) -> None:
    entries = rerank(client, "bert-cross", documents=["music"] * 9 + ["winter"])
    assert len({round(entry["score"], 5) for entry in entries if entry["index"] < 9}) == 1
