"""Faults that happened to servers like this one, as far as a client can see them; the rest of the list is covered by
the modules on routes, errors, invariance, overload, metrics and lifecycle."""

import math
import re
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from tests.contract.checkpoints import POISON
from tests.contract.oracles import Oracles
from tests.contract.replies import close, labels_close, only, problem, results, served
from tests.contract.server import Server
from tests.contract.texts import mixed_texts, texts_of

FULL_AND_SHORT = (128, 3, 40, 128, 5)


def classify(client: httpx.Client, model: str, texts: list[str]) -> list[dict[str, Any]]:
    body = {"model": model, "inputs": texts, "activation": "none"}
    return served(client.post("/classify", json=body), len(texts))


def test_left_padding_does_not_shift_positions(client: httpx.Client, oracles: Oracles) -> None:
    """Left-padded batch, absolute positions = pad + offset: differs from single."""
    texts = texts_of(oracles.tokenizer("leftpad-cls"), FULL_AND_SHORT)
    for text, entry in zip(texts, classify(client, "leftpad-cls", texts), strict=True):
        labels_close(entry, oracles.classified("leftpad-cls", text))


def test_last_token_pooling_of_a_full_row_beside_a_padded_one(client: httpx.Client, oracles: Oracles) -> None:
    """Last-token pooling index off when a batch holds one padded and one full row: use length, not max_length - 1."""
    texts = texts_of(oracles.tokenizer("st-last"), FULL_AND_SHORT)
    entries = served(client.post("/embed", json={"model": "st-last", "inputs": texts, "normalize": False}), len(texts))
    encoder = oracles.sentences("st-last")
    close([entry["embedding"] for entry in entries], [encoder.encode(text) for text in texts])


def test_a_convolution_does_not_mix_neighbours(client: httpx.Client, oracles: Oracles) -> None:
    """A ConvLayer (kernel 3) in a packed stream would mix neighbours' tokens at boundaries."""
    texts = ["", "a", "b", "music", "", "winter evening"] * 5
    for text, entry in zip(texts, classify(client, "deberta-cls", texts), strict=True):
        labels_close(entry, oracles.classified("deberta-cls", text))


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_a_text_of_no_tokens_never_reaches_a_kernel(client: httpx.Client, text: str) -> None:
    """Zero-length sequence inside a packed batch: NaN; never let an empty row reach the kernel."""
    problem(client.post("/classify", json={"model": "bert-bare", "inputs": text}), 422, "empty_input")
    body = {"model": "bert-bare", "inputs": ["music", text, "winter"]}
    first, empty, last = results(client.post("/classify", json=body), 3)
    assert empty["error"]["code"] == "empty_input"
    for entry in (first, last):
        assert all(math.isfinite(label["score"]) for label in entry["labels"])


@pytest.mark.parametrize("model", ["tanh-cls", "relu-cls", "bert-cls"])
def test_the_activation_is_the_checkpoints_own(client: httpx.Client, oracles: Oracles, model: str) -> None:
    """GELU erf vs tanh mixed up shifts all outputs."""
    texts = mixed_texts(20, 8)
    for text, entry in zip(texts, classify(client, model, texts), strict=True):
        labels_close(entry, oracles.classified(model, text))


def test_half_precision_of_disentangled_attention_is_finite_and_near(client: httpx.Client, oracles: Oracles) -> None:
    """DeBERTa with fp16/bf16: "value cannot be converted to type at::Half without overflow"; NaN."""
    texts = mixed_texts(21, 16)
    spread = []
    for text, entry in zip(texts, classify(client, "deberta-bf16", texts), strict=True):
        expected = oracles.classified("deberta-bf16", text)
        labels_close(entry, expected, tolerance=0.1)
        spread.append(list(expected.values()))
    assert np.ptp(np.asarray(spread), axis=0).min() > 0.2


@pytest.mark.parametrize("path", ["/classify", "/rerank"])
def test_nan_is_an_error_and_never_a_score(client: httpx.Client, path: str) -> None:
    """NaN garbage: 500 nonfinite_output for the one that has it, and never null, in place of a score."""
    one: dict[str, Any] = {"model": "poison-cross", "inputs": f"a {POISON}"}
    many: dict[str, Any] = {"model": "poison-cross", "inputs": ["music", f"a {POISON}", "winter", "a city"]}
    if path == "/rerank":
        one = {"model": "poison-cross", "query": "a", "documents": [POISON]}
        many = {"model": "poison-cross", "query": "a", "documents": ["music", POISON, "winter", "a city"]}
    problem(client.post(path, json=one), 500, "nonfinite_output")
    reply = client.post(path, json=many)
    assert not re.search(r'"score":\s*(null|NaN|-?Infinity)', reply.text)
    entries = results(reply, 4)
    failed = [entry for entry in entries if "error" in entry]
    assert [entry["error"]["code"] for entry in failed] == ["nonfinite_output"]
    assert entries.index(failed[0]) == (3 if path == "/rerank" else 1)


def test_nan_leaves_nothing_behind(client: httpx.Client, oracles: Oracles) -> None:
    """NaN sitting in a buffer of an earlier batch poisons a later one: pad buffers must be zeroed."""
    for _ in range(3):
        client.post("/classify", json={"model": "poison-cross", "inputs": [f"{POISON} " * 40] * 4})
        for text, entry in zip(["a", "music"], classify(client, "poison-cross", ["a", "music"]), strict=True):
            labels_close(entry, oracles.classified("poison-cross", text))


def test_labels_follow_their_ids(client: httpx.Client, oracles: Oracles) -> None:
    """id2label keys are strings in JSON; order must follow id, not insertion (nor the alphabet: 10 before 2)."""
    entry = classify(client, "scrambled-cls", ["a dark winter"])[0]
    logits = oracles.logits("scrambled-cls", "a dark winter")
    labels_close(entry, {f"class-{chr(ord('z') - index)}": float(logits[index]) for index in range(12)})


def test_a_reranker_is_not_an_embedder(client: httpx.Client) -> None:
    """Reranker loaded as embedder: all 0.0 scores, no error."""
    for model in ("bert-cross", "bert-two"):
        problem(client.post("/embed", json={"model": model, "inputs": "a"}), 422, "wrong_task")
        inputs = {"source": "a", "sentences": ["b"]}
        problem(client.post("/similarity", json={"model": model, "inputs": inputs}), 422, "wrong_task")


def test_a_classifier_of_two_labels_does_not_rank_by_a_pair_of_scores(client: httpx.Client, oracles: Oracles) -> None:
    """2-label cross-encoder breaks sorting: it is refused, or ranks by the one label that means relevance."""
    documents = ["music", "winter", "a city"]
    reply = client.post("/rerank", json={"model": "bert-two", "query": "a", "documents": documents})
    if reply.status_code == 200:
        for entry in served(reply, 3):
            logits = oracles.logits("bert-two", "a", documents[entry["index"]])
            assert entry["score"] == pytest.approx(1 / (1 + np.exp(logits[0] - logits[1])), abs=1e-4)
    else:
        problem(reply, 422, "wrong_task")


def test_a_model_with_room_for_one_sequence_a_batch_serves_lists(client: httpx.Client, oracles: Oracles) -> None:
    """max_batch_size=1 crashes the metrics bucket builder."""
    texts = texts_of(oracles.tokenizer("alone-cls"), FULL_AND_SHORT)
    for text, entry in zip(texts, classify(client, "alone-cls", texts), strict=True):
        labels_close(entry, oracles.classified("alone-cls", text))


def test_a_vast_budget_is_not_allocated_ahead(client: httpx.Client, oracles: Oracles) -> None:
    """Warm-up allocates the full budget on a CPU and stalls the start."""
    labels_close(classify(client, "vast-cls", ["music"])[0], oracles.classified("vast-cls", "music"))


@pytest.mark.parametrize(("model", "path"), [("bert-cross", "/rerank"), ("bert-cls", "/classify")])
def test_raw_scores_are_raw(client: httpx.Client, oracles: Oracles, model: str, path: str) -> None:
    """`raw_scores` ignored."""
    if path == "/rerank":
        body: dict[str, Any] = {"model": model, "query": "a", "documents": ["music"], "activation": "none"}
        assert only(client.post(path, json=body))["score"] == pytest.approx(
            float(oracles.logits(model, "a", "music")[0]), abs=1e-4
        )
    else:
        labels_close(classify(client, model, ["music"])[0], oracles.classified(model, "music"))


def test_large_lists_are_served_whole(client: httpx.Client) -> None:
    """A handler that returns one result less leaves the rest waiting for ever."""
    texts = mixed_texts(22, 1_500, longest=8)
    served(client.post("/classify", json={"model": "bert-cls", "inputs": texts}), 1_500)


def test_memory_does_not_grow_with_large_lists(client: httpx.Client, server: Server) -> None:
    """Resident memory grows with large lists, and stays."""
    process = psutil.Process(server.process.pid)
    body = {"model": "st-mean", "inputs": mixed_texts(23, 2_000, longest=8)}
    resident = []
    for _ in range(6):
        served(client.post("/embed", json=body), 2_000)
        resident.append(process.memory_info().rss)
    assert resident[-1] - resident[1] < 32 * 2**20, resident


@pytest.mark.parametrize(
    "text", ["é" * 60, "e\u0301" * 30, "😀" * 30, "\u200b\u200d\ufeff", "\u0000", "ﬁ ﷺ ｶﾞ Ⅷ", "क्षि"]
)
@pytest.mark.parametrize("model", ["bert-cls", "roberta-cls", "deberta-cls", "xlmr-cls", "modernbert-cls"])
def test_odd_unicode(client: httpx.Client, oracles: Oracles, model: str, text: str) -> None:
    """Byte fallback, decomposed accents, characters that a normalizer drops or multiplies."""
    labels_close(classify(client, model, [text])[0], oracles.classified(model, text))
