"""/zero-shot against the zero-shot-classification pipeline, and cosine for embedding models."""

from typing import Any

import httpx
import numpy as np
import pytest

from tests.contract.oracles import Oracles
from tests.contract.replies import labels_close, only, problem, results, served
from tests.contract.texts import mixed_texts

TEXT = "Clara builds a computer network in Vienna."
LABELS = ["music", "slow, dark winter", "computer science", "Anna's house"]
NLI = pytest.mark.parametrize("model", ["bert-nli", "roberta-nli"])


def expected(oracles: Oracles, model: str, text: str, labels: list[str], **options: Any) -> dict[str, float]:
    found = oracles.pipeline("zero-shot-classification", model)(text, candidate_labels=labels, **options)
    return dict(zip(found["labels"], found["scores"], strict=True))


@NLI
@pytest.mark.parametrize("multi_label", [False, True])
def test_nli(client: httpx.Client, oracles: Oracles, model: str, multi_label: bool) -> None:
    body = {"model": model, "inputs": TEXT, "labels": LABELS, "multi_label": multi_label}
    entry = only(client.post("/zero-shot", json=body))
    assert entry["method"] == "nli"
    labels_close(entry, expected(oracles, model, TEXT, LABELS, multi_label=multi_label))


@NLI
def test_the_default_is_single_label_and_the_documented_template(
    client: httpx.Client, oracles: Oracles, model: str
) -> None:
    entry = only(client.post("/zero-shot", json={"model": model, "inputs": TEXT, "labels": LABELS}))
    template = "This example is {}."
    labels_close(entry, expected(oracles, model, TEXT, LABELS, hypothesis_template=template, multi_label=False))
    assert sum(label["score"] for label in entry["labels"]) == pytest.approx(1, abs=1e-4)


@NLI
def test_template(client: httpx.Client, oracles: Oracles, model: str) -> None:
    template = "{} is what the teacher reads about"
    body = {"model": model, "inputs": TEXT, "labels": LABELS, "hypothesis_template": template}
    entry = only(client.post("/zero-shot", json=body))
    labels_close(entry, expected(oracles, model, TEXT, LABELS, hypothesis_template=template))


@pytest.mark.parametrize("template", ["no place for the label", "", "{label}", "{", "{1}"])
def test_a_template_without_its_place_is_refused(client: httpx.Client, template: str) -> None:
    body = {"model": "bert-nli", "inputs": TEXT, "labels": LABELS, "hypothesis_template": template}
    problem(client.post("/zero-shot", json=body), 422, "invalid_field")


@NLI
def test_one_label_is_scored_by_itself_as_the_pipeline_does(client: httpx.Client, oracles: Oracles, model: str) -> None:
    entry = only(client.post("/zero-shot", json={"model": model, "inputs": TEXT, "labels": ["music"]}))
    labels_close(entry, expected(oracles, model, TEXT, ["music"]))


@NLI
def test_a_list_of_texts(client: httpx.Client, oracles: Oracles, model: str) -> None:
    texts = mixed_texts(6, 10)
    entries = served(client.post("/zero-shot", json={"model": model, "inputs": texts, "labels": LABELS}), 10)
    for text, entry in zip(texts, entries, strict=True):
        labels_close(entry, expected(oracles, model, text, LABELS))


def test_tokens_sum_over_the_pairs_that_were_run(client: httpx.Client, oracles: Oracles) -> None:
    entry = only(client.post("/zero-shot", json={"model": "bert-nli", "inputs": TEXT, "labels": LABELS}))
    tokenizer = oracles.tokenizer("bert-nli")
    assert entry["tokens"] == sum(len(tokenizer(TEXT, f"This example is {label}.")["input_ids"]) for label in LABELS)


@pytest.mark.parametrize("model", ["st-mean", "st-dense", "st-mpnet"])
def test_an_embedding_model_answers_by_cosine(client: httpx.Client, oracles: Oracles, model: str) -> None:
    entry = only(client.post("/zero-shot", json={"model": model, "inputs": TEXT, "labels": LABELS}))
    assert entry["method"] == "similarity"
    hypotheses = [f"This example is {label}." for label in LABELS]
    vectors = oracles.sentences(model).encode([TEXT, *hypotheses], normalize_embeddings=True)
    cosines = np.asarray(vectors[1:] @ vectors[0])
    labels_close(entry, {label: float(cosine) for label, cosine in zip(LABELS, cosines, strict=True)})


@pytest.mark.parametrize("side", ["right", "left"])
@NLI
def test_only_the_premise_is_cut(client: httpx.Client, oracles: Oracles, model: str, side: str) -> None:
    text = " ".join(mixed_texts(7, 40))
    body = {"model": model, "inputs": text, "labels": LABELS, "truncate": True, "truncation_side": side}
    entry = only(client.post("/zero-shot", json=body))
    tokenizer = oracles.fresh_tokenizer(model, truncation_side=side)
    config = oracles.module(model).config
    entails = next(index for index, name in config.id2label.items() if name.lower().startswith("entail"))
    scores = []
    for label in LABELS:
        pair = tokenizer(
            text, f"This example is {label}.", truncation="only_first", max_length=128, return_tensors="pt"
        )
        scores.append(float(np.exp(oracles.run(model, pair)[entails])))
    labels_close(entry, {label: score / sum(scores) for label, score in zip(LABELS, scores, strict=True)})
    assert entry["truncated"] is True


def test_a_hypothesis_that_alone_fills_the_model_is_refused(client: httpx.Client) -> None:
    for truncate in (False, True):
        body = {"model": "bert-nli", "inputs": TEXT, "labels": ["music", "river " * 200], "truncate": truncate}
        problem(client.post("/zero-shot", json=body), 422)


@pytest.mark.parametrize("labels", [[], ["a", 5], "music", [["a", "b"]], [["a"], ["b"]], None, {"a": "b"}])
def test_labels_are_a_list_of_strings(client: httpx.Client, labels: Any) -> None:
    problem(client.post("/zero-shot", json={"model": "bert-nli", "inputs": TEXT, "labels": labels}), 422)


@pytest.mark.parametrize("multi_label", ["true", 1, None])
def test_multi_label_is_a_strict_boolean(client: httpx.Client, multi_label: Any) -> None:
    body = {"model": "bert-nli", "inputs": TEXT, "labels": LABELS, "multi_label": multi_label}
    problem(client.post("/zero-shot", json=body), 422, "invalid_field")


def test_a_classifier_without_entailment_is_not_a_zero_shot_model(client: httpx.Client) -> None:
    body = {"model": "bert-cls", "inputs": TEXT, "labels": LABELS}
    problem(client.post("/zero-shot", json=body), 422, "wrong_task")


def test_a_failing_text_leaves_the_others(client: httpx.Client) -> None:
    body = {"model": "bert-nli", "inputs": [TEXT, "river " * 300], "labels": LABELS}
    good, bad = results(client.post("/zero-shot", json=body), 2)
    assert len(good["labels"]) == 4
    assert bad["error"]["code"] == "input_too_long"
