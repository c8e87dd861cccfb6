"""/similarity against the cosine of sentence-transformers' embeddings."""

from typing import Any

import httpx
import pytest

from tests.contract.oracles import Oracles
from tests.contract.replies import close, only, problem, results, served
from tests.contract.texts import mixed_texts

MODELS = pytest.mark.parametrize("model", ["st-mean", "st-dense", "st-last", "st-mpnet"])
SENTENCES = mixed_texts(10, 9)


def cosines(oracles: Oracles, model: str, source: str, sentences: list[str]) -> Any:
    vectors = [oracles.sentences(model).encode(text, normalize_embeddings=True) for text in (source, *sentences)]
    return [float(vector @ vectors[0]) for vector in vectors[1:]]


@MODELS
def test_scores_are_cosines_in_the_order_of_the_sentences(client: httpx.Client, oracles: Oracles, model: str) -> None:
    inputs = {"source": "a cold evening", "sentences": SENTENCES}
    entry = only(client.post("/similarity", json={"model": model, "inputs": inputs}))
    close(entry["scores"], cosines(oracles, model, "a cold evening", SENTENCES))


@MODELS
def test_a_list_of_questions(client: httpx.Client, oracles: Oracles, model: str) -> None:
    inputs = [{"source": SENTENCES[0], "sentences": SENTENCES[1:4]}, {"source": "x", "sentences": ["x"]}]
    entries = served(client.post("/similarity", json={"model": model, "inputs": inputs}), 2)
    for item, entry in zip(inputs, entries, strict=True):
        close(entry["scores"], cosines(oracles, model, str(item["source"]), list(item["sentences"])))
    assert entries[1]["scores"] == pytest.approx([1.0], abs=1e-4)


def test_tokens_are_summed_and_truncated_is_any(client: httpx.Client, oracles: Oracles) -> None:
    tokenizer = oracles.tokenizer("st-mean")
    texts = ["a cold evening", "music", "bright light"]
    inputs: dict[str, Any] = {"source": texts[0], "sentences": texts[1:]}
    entry = only(client.post("/similarity", json={"model": "st-mean", "inputs": inputs}))
    assert entry["tokens"] == sum(len(tokenizer(text)["input_ids"]) for text in texts)
    assert entry["truncated"] is False
    inputs["sentences"].append("river " * 300)
    entry = only(client.post("/similarity", json={"model": "st-mean", "inputs": inputs, "truncate": True}))
    assert entry["truncated"] is True


@pytest.mark.parametrize(
    "wrong",
    [
        "text",
        {"source": "a"},
        {"sentences": ["a"]},
        {"source": "a", "sentences": "b"},
        {"source": "a", "sentences": []},
        {"source": ["a"], "sentences": ["b"]},
        {"source": "a", "sentences": ["b"], "more": 1},
        {"source": "a", "sentences": [5]},
    ],
)
def test_wrong_inputs(client: httpx.Client, wrong: Any) -> None:
    problem(client.post("/similarity", json={"model": "st-mean", "inputs": wrong}), 422)


def test_a_failing_question_leaves_the_others(client: httpx.Client) -> None:
    inputs = [{"source": "a", "sentences": ["river " * 300]}, {"source": "a", "sentences": ["b"]}]
    bad, good = results(client.post("/similarity", json={"model": "st-mean", "inputs": inputs}), 2)
    assert bad["error"]["code"] == "input_too_long"
    assert len(good["scores"]) == 1
