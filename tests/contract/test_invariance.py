"""The result for an input never depends on its neighbours: family by family, alone == list == crowd == oracle."""

import asyncio
import random
from typing import Any

import httpx
import pytest

from tests.contract.families import FAMILIES, MAX_LENGTH
from tests.contract.oracles import Oracles
from tests.contract.replies import describe, labels_close, only, served
from tests.contract.server import Server
from tests.contract.texts import texts_of

EDGES = (3, 4, 7, 8, 9, 15, 16, 17, 18, 31, 32, 33, 47, 48, 49, 63, 64, 65, 66, 96, 127, 128)
CROWD = 64
OTHERS = ("bert-multi", "bert-cross", "tanh-cls", "relu-cls", "scrambled-cls", "leftpad-cls", "alone-cls")
every_model = pytest.mark.parametrize("model", [*(f"{family}-cls" for family in FAMILIES), *OTHERS])


def crowd_lengths(seed: int) -> list[int]:
    """64 lengths: one token, the edges of usual buckets and of windows, the maximum, and short ones."""
    rng = random.Random(seed)
    lengths = [*EDGES, *(3 + int(60 * rng.random() ** 3) for _ in range(CROWD - len(EDGES)))]
    rng.shuffle(lengths)
    return lengths


def body(model: str, inputs: Any) -> dict[str, Any]:
    return {"model": model, "inputs": inputs, "activation": "none"}


def texts_for(oracles: Oracles, model: str) -> list[str]:
    return texts_of(oracles.tokenizer(model), crowd_lengths(len(model)), seed=len(model))


@every_model
def test_alone_list_and_crowd_equal_the_oracle(
    client: httpx.Client, server: Server, oracles: Oracles, model: str
) -> None:
    texts = texts_for(oracles, model)
    expected = [oracles.classified(model, text) for text in texts]
    spread = [
        max(values[label] for values in expected) - min(values[label] for values in expected) for label in expected[0]
    ]
    assert min(spread) > 0.05, "outputs must depend on the input for this test to mean much"
    alone = [only(client.post("/classify", json=body(model, text))) for text in texts]
    listed = served(client.post("/classify", json=body(model, texts)), CROWD)
    crowd = asyncio.run(in_a_crowd(server, [body(model, text) for text in texts]))
    for way in (alone, listed, crowd):
        for entry, text, values in zip(way, texts, expected, strict=True):
            assert entry["tokens"] == len(oracles.tokenizer(model)(text)["input_ids"])
            labels_close(entry, values)


async def in_a_crowd(server: Server, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    async with server.async_client(connections=len(bodies)) as client:
        replies = await asyncio.gather(*(client.post("/classify", json=each) for each in bodies))
    assert {reply.status_code for reply in replies} == {200}, [describe(reply) for reply in replies if reply.is_error]
    return [only(reply) for reply in replies]


@pytest.mark.parametrize("family", FAMILIES)
def test_one_token_is_enough(client: httpx.Client, server: Server, oracles: Oracles, family: str) -> None:
    """Without special tokens, so that a sequence may be a single token; beside the longest."""
    model = f"{family}-bare"
    texts = texts_of(oracles.tokenizer(model), [1, 2, MAX_LENGTH, 1, 3, 16, 1, 17], seed=17)
    expected = [oracles.classified(model, text) for text in texts]
    alone = [only(client.post("/classify", json=body(model, text))) for text in texts]
    listed = served(client.post("/classify", json=body(model, texts)), len(texts))
    crowd = asyncio.run(in_a_crowd(server, [body(model, text) for text in texts]))
    assert [entry["tokens"] for entry in listed] == [1, 2, MAX_LENGTH, 1, 3, 16, 1, 17]
    for way in (alone, listed, crowd):
        for entry, values in zip(way, expected, strict=True):
            labels_close(entry, values)


@every_model
def test_the_edges_of_the_models_own_buckets(client: httpx.Client, oracles: Oracles, model: str) -> None:
    edges = client.get(f"/models/{model}").json()["buckets"]
    assert edges, "a model states its buckets"
    lengths = sorted({min(MAX_LENGTH, max(3, edge + step)) for edge in edges for step in (-1, 0, 1)})
    texts = texts_of(oracles.tokenizer(model), lengths, seed=77)
    for text, entry in zip(texts, served(client.post("/classify", json=body(model, texts)), len(texts)), strict=True):
        labels_close(entry, oracles.classified(model, text))


@every_model
def test_one_short_text_between_two_of_maximum_length(client: httpx.Client, oracles: Oracles, model: str) -> None:
    texts = texts_of(oracles.tokenizer(model), [MAX_LENGTH, 3, MAX_LENGTH, 3, 4, MAX_LENGTH], seed=91)
    for text, entry in zip(texts, served(client.post("/classify", json=body(model, texts)), len(texts)), strict=True):
        labels_close(entry, oracles.classified(model, text))


@pytest.mark.parametrize("length", [1, 2, 8, 9, 16, 17, 32, 33, 256, 512, 513, 600])
def test_relative_positions_stay_inside_their_sequence(client: httpx.Client, oracles: Oracles, length: int) -> None:
    """Logarithmic buckets on both sides of the middle, with the convolution's edges, at 1 to 600 tokens."""
    tokenizer = oracles.tokenizer("deberta-long")
    texts = ["", *texts_of(tokenizer, [max(3, length), 5, 40], seed=5)]
    for text, entry in zip(texts, served(client.post("/classify", json=body("deberta-long", texts)), 4), strict=True):
        labels_close(entry, oracles.classified("deberta-long", text))
