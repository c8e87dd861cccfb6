"""/fill-mask against the transformers fill-mask pipeline."""

from typing import Any

import httpx
import pytest

from tests.contract.oracles import TOLERANCE, Oracles
from tests.contract.replies import best_first, close, only, problem, served

MODELS = {"bert-mlm": "[MASK]", "roberta-mlm": "<mask>", "modernbert-mlm": "[MASK]"}
every_model = pytest.mark.parametrize("model", MODELS)


def assert_mask(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected)
    close([each["score"] for each in found], [each["score"] for each in expected])
    best_first([each["score"] for each in found])
    by_token = {each["token"]: each for each in expected}
    for position, each in enumerate(found):
        twin = by_token.get(each["token"])
        if twin is None:
            # Only a tie at the very end of the list may replace a token by another.
            assert each["score"] == pytest.approx(expected[-1]["score"], abs=TOLERANCE), position
            continue
        assert each["score"] == pytest.approx(twin["score"], abs=TOLERANCE)
        assert each["token_str"].strip() == twin["token_str"].strip()
        assert each["sequence"].strip() == twin["sequence"].strip()


@every_model
@pytest.mark.parametrize("top_k", [1, 5, 20])
def test_one_mask(client: httpx.Client, oracles: Oracles, model: str, top_k: int) -> None:
    text = f"the quiet {MODELS[model]} walks to Paris."
    entry = only(client.post("/fill-mask", json={"model": model, "inputs": text, "top_k": top_k}))
    assert len(entry["masks"]) == 1
    assert_mask(entry["masks"][0], oracles.pipeline("fill-mask", model)(text, top_k=top_k))


@every_model
def test_five_are_given_unless_asked(client: httpx.Client, model: str) -> None:
    entry = only(client.post("/fill-mask", json={"model": model, "inputs": f"a {MODELS[model]}"}))
    assert [len(mask) for mask in entry["masks"]] == [5]


@every_model
def test_several_masks(client: httpx.Client, oracles: Oracles, model: str) -> None:
    mask = MODELS[model]
    text = f"{mask} reads a {mask} letter {mask}"
    entry = only(client.post("/fill-mask", json={"model": model, "inputs": text, "top_k": 4}))
    expected = oracles.pipeline("fill-mask", model)(text, top_k=4)
    assert len(entry["masks"]) == 3
    for found, twin in zip(entry["masks"], expected, strict=True):
        assert_mask(found, twin)
        for each in found:
            assert each["token_str"].strip("# ") in each["sequence"]


@every_model
def test_both_spellings_of_the_mask_are_masks_for_every_model(
    client: httpx.Client, oracles: Oracles, model: str
) -> None:
    expected = oracles.pipeline("fill-mask", model)(f"a dark {MODELS[model]} in Oslo")
    for spelling in ("[MASK]", "<mask>"):
        entry = only(client.post("/fill-mask", json={"model": model, "inputs": f"a dark {spelling} in Oslo"}))
        assert_mask(entry["masks"][0], expected)


@every_model
def test_a_list_equals_its_items_alone(client: httpx.Client, oracles: Oracles, model: str) -> None:
    mask = MODELS[model]
    texts = [f"{mask}", f"the {mask} city is full of music and light", f"a b c {mask} e f g h i"] * 4
    entries = served(client.post("/fill-mask", json={"model": model, "inputs": texts}), len(texts))
    run = oracles.pipeline("fill-mask", model)
    for text, entry in zip(texts, entries, strict=True):
        assert_mask(entry["masks"][0], run(text))


def test_targets_limit_the_answers(client: httpx.Client, oracles: Oracles) -> None:
    targets = ["winter", "city", "music"]
    text = "the [MASK] is cold"
    body = {"model": "bert-mlm", "inputs": text, "targets": targets, "top_k": 3}
    entry = only(client.post("/fill-mask", json=body))
    assert_mask(entry["masks"][0], oracles.pipeline("fill-mask", "bert-mlm")(text, targets=targets, top_k=3))
    assert {each["token_str"] for each in entry["masks"][0]} == set(targets)


def test_targets_are_cut_by_top_k(client: httpx.Client) -> None:
    body = {"model": "bert-mlm", "inputs": "the [MASK]", "targets": ["winter", "city", "music"], "top_k": 2}
    assert len(only(client.post("/fill-mask", json=body))["masks"][0]) == 2


@pytest.mark.parametrize("targets", [[], [5], "winter", [""], ["qqqqzzzz"], ["winter", "winter"]])
def test_odd_targets_are_answered_or_refused(client: httpx.Client, targets: Any) -> None:
    reply = client.post("/fill-mask", json={"model": "bert-mlm", "inputs": "the [MASK]", "targets": targets})
    if reply.status_code == 200:
        tokens = [each["token"] for each in only(reply)["masks"][0]]
        assert len(set(tokens)) == len(tokens) > 0
    else:
        problem(reply, 422)


@pytest.mark.parametrize("text", ["", "no mask here", "mask", "[ MASK ]"])
def test_a_text_without_a_mask(client: httpx.Client, text: str) -> None:
    problem(client.post("/fill-mask", json={"model": "bert-mlm", "inputs": text}), 422, "no_mask")


def test_a_text_without_a_mask_fails_alone(client: httpx.Client) -> None:
    body = {"model": "bert-mlm", "inputs": ["the [MASK]", "none", "a [MASK]"]}
    entries = client.post("/fill-mask", json=body).json()["results"]
    assert entries[1]["error"]["code"] == "no_mask"
    assert [len(entries[index]["masks"]) for index in (0, 2)] == [1, 1]


def test_top_k_over_the_vocabulary_gives_all_of_it_or_is_refused(client: httpx.Client, oracles: Oracles) -> None:
    vocabulary = len(oracles.tokenizer("bert-mlm"))
    for top_k in (vocabulary + 1, 10**6):
        reply = client.post("/fill-mask", json={"model": "bert-mlm", "inputs": "the [MASK]", "top_k": top_k})
        if reply.status_code == 200:
            assert len(only(reply)["masks"][0]) == vocabulary
        else:
            problem(reply, 422, "invalid_field")


@pytest.mark.parametrize("top_k", [0, -1, "5", 5.0, True, 10**20, 10**9 * 5])
def test_top_k_out_of_bounds(client: httpx.Client, top_k: Any) -> None:
    problem(client.post("/fill-mask", json={"model": "bert-mlm", "inputs": "a [MASK]", "top_k": top_k}), 422)


def test_a_mask_that_is_cut_away_is_an_error(client: httpx.Client) -> None:
    body = {"model": "bert-mlm", "inputs": "river " * 300 + "[MASK]", "truncate": True}
    problem(client.post("/fill-mask", json=body), 422, "no_mask")
