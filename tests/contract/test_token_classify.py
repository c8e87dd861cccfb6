"""/token-classify against the token-classification pipeline, and against windows labelled by hand for long text."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx
import numpy as np
import pytest

from tests.contract.oracles import Oracles
from tests.contract.replies import only, problem, results, served
from tests.contract.texts import mixed_texts

MODELS = pytest.mark.parametrize("model", ["bert-ner", "roberta-ner", "xlmr-ner"])
AGGREGATIONS = ("none", "simple", "first", "average", "max")
TEXTS = [
    "Anna walks to Paris and Globex with David.",
    "  Two  spaces\tand a tab, Oslo ",
    "It costs 5.975,74 in Berlin (Germany)!",
    "Zoë — naïve café in Québec; 日本 and 👩‍👩‍👧 Vienna",
    "unbreakable networks and strangely-hyphenated kernels",
    "x",
]


def span(text: str, entity: dict[str, Any]) -> tuple[int, int]:
    """Offsets of the entity without outer spaces, which a pipeline may include."""
    start, end = int(entity["start"]), int(entity["end"])
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end


def visible(text: str, entities: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without entities that are nothing but space."""
    return [entity for entity in entities if span(text, entity)[0] < span(text, entity)[1]]


def check_offsets(text: str, entities: list[dict[str, Any]]) -> None:
    previous = 0
    for entity in entities:
        assert 0 <= entity["start"] <= entity["end"] <= len(text)
        assert entity["text"] == text[entity["start"] : entity["end"]].strip()
        assert entity["start"] >= previous, entities
        previous = entity["start"]


def assert_entities(text: str, found: list[dict[str, Any]], expected: list[dict[str, Any]], tag: str) -> None:
    check_offsets(text, found)
    found, expected = visible(text, found), visible(text, expected)
    named = [(each["label"], *span(text, each)) for each in found]
    assert named == [(each[tag], *span(text, each)) for each in expected]
    scores = [float(each["score"]) for each in expected]
    assert [each["score"] for each in found] == pytest.approx(scores, abs=1e-4)


@MODELS
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_every_aggregation(client: httpx.Client, oracles: Oracles, model: str, aggregation: str) -> None:
    reply = client.post("/token-classify", json={"model": model, "inputs": TEXTS, "aggregation": aggregation})
    run = oracles.pipeline("token-classification", model)
    tag = "entity" if aggregation == "none" else "entity_group"
    for text, entry in zip(TEXTS, served(reply, len(TEXTS)), strict=True):
        assert_entities(text, entry["entities"], run(text, aggregation_strategy=aggregation), tag)


@MODELS
def test_the_default_is_first(client: httpx.Client, model: str) -> None:
    bodies = [{"model": model, "inputs": TEXTS[0]}, {"model": model, "inputs": TEXTS[0], "aggregation": "first"}]
    default, first = (only(client.post("/token-classify", json=body))["entities"] for body in bodies)
    assert default == first


@MODELS
@pytest.mark.parametrize("aggregation", ["first", "average", "max"])
def test_no_word_is_cut_in_two(client: httpx.Client, model: str, aggregation: str) -> None:
    text = "Annabella of Parisville, winters in strangeness and Berliners"
    entry = only(client.post("/token-classify", json={"model": model, "inputs": text, "aggregation": aggregation}))
    check_offsets(text, entry["entities"])
    for entity in entry["entities"]:
        start, end = span(text, entity)
        assert start == 0 or not (text[start - 1].isalnum() and text[start].isalnum()), entity
        assert end == len(text) or not (text[end - 1].isalnum() and text[end].isalnum()), entity


@MODELS
def test_a_list_equals_its_items_alone(client: httpx.Client, oracles: Oracles, model: str) -> None:
    texts = mixed_texts(13, 24)
    entries = served(
        client.post("/token-classify", json={"model": model, "inputs": texts, "aggregation": "none"}), len(texts)
    )
    for text, entry in zip(texts, entries, strict=True):
        assert_entities(text, entry["entities"], labelled(oracles, model, text), "entity")


def labelled(oracles: Oracles, model: str, text: str) -> list[dict[str, Any]]:
    """Every token's best label, O left out, from the plain module."""
    encoded = oracles.encode(model, text, return_offsets_mapping=True, return_special_tokens_mask=True)
    offsets = encoded.pop("offset_mapping")[0].tolist()
    special = encoded.pop("special_tokens_mask")[0].tolist()
    scores = probabilities(oracles.run(model, encoded, "ForTokenClassification"))
    names = oracles.module(model, "ForTokenClassification").config.id2label
    return [
        {"entity": names[int(row.argmax())], "score": row.max(), "start": start, "end": end}
        for row, (start, end), skip in zip(scores, offsets, special, strict=True)
        if not skip and names[int(row.argmax())] != "O"
    ]


def probabilities(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


@dataclass(slots=True)
class Votes:
    """What every window says of one token; ``distance`` is to the nearest edge, ``open_distance`` the same with the
    text's own ends counted as far away."""

    span: tuple[int, int]
    distance: list[int] = field(default_factory=list)
    open_distance: list[int] = field(default_factory=list)
    choices: list[tuple[str, float]] = field(default_factory=list)

    @property
    def allowed(self) -> list[tuple[str, float]]:
        """The choices of the windows in which the token stands farthest from an edge."""
        return [
            choice
            for distances in (self.distance, self.open_distance)
            for choice, distance in zip(self.choices, distances, strict=True)
            if distance == max(distances)
        ]


def windows(oracles: Oracles, model: str, text: str, stride: int) -> list[Votes]:
    """Every token's votes, in the order of the text."""
    tokenizer = oracles.tokenizer(model)
    options = {"truncation": True, "max_length": 128, "return_overflowing_tokens": True, "stride": stride}
    encoded = tokenizer(text, return_offsets_mapping=True, **options)
    names = oracles.module(model, "ForTokenClassification").config.id2label
    tokens: dict[int, Votes] = {}
    last = len(encoded["input_ids"]) - 1
    for number, (ids, offsets) in enumerate(zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)):
        window = tokenizer.pad({"input_ids": [ids]}, return_tensors="pt")
        scores = probabilities(oracles.run(model, window, "ForTokenClassification"))[1:-1]
        for position, row in enumerate(scores):
            left, right = position, len(scores) - 1 - position
            token = tokens.setdefault(number * (126 - stride) + position, Votes(offsets[position + 1]))
            token.distance.append(min(left, right))
            token.open_distance.append(min(left if number else 10**6, right if number < last else 10**6))
            token.choices.append((names[int(row.argmax())], float(row.max())))
    return [tokens[index] for index in range(len(tokens))]


@MODELS
@pytest.mark.parametrize("stride", [16, 60])
def test_long_text_by_stride(client: httpx.Client, oracles: Oracles, model: str, stride: int) -> None:
    text = " ".join(mixed_texts(14, 40))
    body = {"model": model, "inputs": text, "stride": stride, "aggregation": "none"}
    entry = only(client.post("/token-classify", json=body))
    assert entry["truncated"] is False
    check_offsets(text, entry["entities"])
    waiting = entry["entities"]
    for votes in windows(oracles, model, text, stride):
        place = span(text, dict(zip(("start", "end"), votes.span, strict=True)))
        if waiting and span(text, waiting[0]) == place and agrees(waiting[0], votes.allowed):
            waiting = waiting[1:]
        else:
            assert place[0] == place[1] or "O" in [label for label, _ in votes.allowed], (votes, waiting[:1])
    assert not waiting, "entities that no token stands for"


def agrees(entity: dict[str, Any], allowed: list[tuple[str, float]]) -> bool:
    return any(entity["label"] == label and abs(entity["score"] - score) < 1e-4 for label, score in allowed)


@MODELS
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_every_aggregation_of_long_text_covers_it(client: httpx.Client, model: str, aggregation: str) -> None:
    text = " ".join(mixed_texts(15, 40))
    body = {"model": model, "inputs": text, "stride": 32, "aggregation": aggregation}
    entities = only(client.post("/token-classify", json=body))["entities"]
    check_offsets(text, entities)
    assert entities[-1]["end"] > 0.9 * len(text)
    spans = [span(text, entity) for entity in entities]
    # A piece that stands for the space before a text shares its first character with the next one.
    assert all(earlier[1] <= max(later[0], 1) for earlier, later in pairwise(spans)), "entities overlap"


@MODELS
def test_stride_changes_nothing_for_a_short_text(client: httpx.Client, model: str) -> None:
    bodies = [{"model": model, "inputs": TEXTS[0], **extra} for extra in ({}, {"stride": 16})]
    plain, strided = (only(client.post("/token-classify", json=body)) for body in bodies)
    assert plain == strided


@pytest.mark.parametrize("stride", [-1, 126, 128, 10_000, "16", 16.0, True, 10**20])
def test_stride_out_of_bounds(client: httpx.Client, stride: Any) -> None:
    body = {"model": "bert-ner", "inputs": "river " * 200, "stride": stride}
    problem(client.post("/token-classify", json=body), 422)


@pytest.mark.parametrize("aggregation", ["mean", "", None, 5])
def test_an_unknown_aggregation(client: httpx.Client, aggregation: Any) -> None:
    body = {"model": "bert-ner", "inputs": "Anna", "aggregation": aggregation}
    problem(client.post("/token-classify", json=body), 422, "invalid_field")


def test_without_stride_a_long_text_fails_alone(client: httpx.Client) -> None:
    good, bad = results(
        client.post("/token-classify", json={"model": "bert-ner", "inputs": ["Anna", "river " * 300]}), 2
    )
    assert bad["error"]["code"] == "input_too_long"
    assert good["entities"] is not None
