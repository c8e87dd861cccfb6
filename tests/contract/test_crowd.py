"""1,000 mixed requests over all tasks from 64 concurrent clients: no error, and every reply is to its own request."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.contract.oracles import Oracles
from tests.contract.replies import close, describe, labels_close, served
from tests.contract.server import Server
from tests.contract.test_token_classify import labelled
from tests.contract.texts import mixed_texts

REQUESTS, CLIENTS = 1_000, 64
Check = Callable[[list[dict[str, Any]]], None]


@dataclass(frozen=True, slots=True)
class Call:
    path: str
    body: dict[str, Any]
    check: Check
    """Raises when the results are not those of this request."""


def classify(oracles: Oracles, model: str, texts: list[str]) -> Call:
    expected = [oracles.classified(model, text) for text in texts]

    def check(entries: list[dict[str, Any]]) -> None:
        for entry, values in zip(entries, expected, strict=True):
            labels_close(entry, values)

    return Call("/classify", {"model": model, "inputs": texts, "activation": "none"}, check)


def embed(oracles: Oracles, model: str, texts: list[str]) -> Call:
    expected = [oracles.sentences(model).encode(text, normalize_embeddings=True) for text in texts]

    def check(entries: list[dict[str, Any]]) -> None:
        close([entry["embedding"] for entry in entries], expected)

    return Call("/embed", {"model": model, "inputs": texts}, check)


def pairs(oracles: Oracles, model: str, texts: list[str]) -> Call:
    expected = [oracles.classified(model, text, "a cold city") for text in texts]

    def check(entries: list[dict[str, Any]]) -> None:
        for entry, values in zip(entries, expected, strict=True):
            labels_close(entry, values)

    inputs = [{"text": text, "text_pair": "a cold city"} for text in texts]
    return Call("/classify", {"model": model, "inputs": inputs, "activation": "none", "priority": "bulk"}, check)


def rerank(oracles: Oracles, model: str, texts: list[str]) -> Call:
    expected = [float(oracles.logits(model, "a cold city", text)[0]) for text in texts]

    def check(entries: list[dict[str, Any]]) -> None:
        close([entry["score"] for entry in entries], [expected[entry["index"]] for entry in entries])
        assert [entry["score"] for entry in entries] == sorted((e["score"] for e in entries), reverse=True)

    body = {"model": model, "query": "a cold city", "documents": texts, "activation": "none"}
    return Call("/rerank", body, check)


def similarity(oracles: Oracles, model: str, texts: list[str]) -> Call:
    vectors = [oracles.sentences(model).encode(text, normalize_embeddings=True) for text in ("music", *texts)]

    def check(entries: list[dict[str, Any]]) -> None:
        close(entries[0]["scores"], [float(vector @ vectors[0]) for vector in vectors[1:]])

    return Call("/similarity", {"model": model, "inputs": {"source": "music", "sentences": texts}}, check)


def zero_shot(oracles: Oracles, model: str, texts: list[str]) -> Call:
    expected = [zero_shot_scores(oracles, model, text) for text in texts]

    def check(entries: list[dict[str, Any]]) -> None:
        for entry, values in zip(entries, expected, strict=True):
            labels_close(entry, values)

    labels = ["music", "winter"]
    return Call("/zero-shot", {"model": model, "inputs": texts, "labels": labels, "multi_label": True}, check)


def zero_shot_scores(oracles: Oracles, model: str, text: str) -> dict[str, float]:
    run = oracles.pipeline("zero-shot-classification", model)
    found = run(text, candidate_labels=["music", "winter"], multi_label=True)
    return dict(zip(found["labels"], found["scores"], strict=True))


def fill_mask(oracles: Oracles, model: str, texts: list[str]) -> Call:
    mask = oracles.tokenizer(model).mask_token
    inputs = [f"{text} {mask}" for text in texts]
    expected = [oracles.pipeline("fill-mask", model)(text, top_k=3) for text in inputs]

    def check(entries: list[dict[str, Any]]) -> None:
        for entry, best in zip(entries, expected, strict=True):
            close([each["score"] for each in entry["masks"][0]], [each["score"] for each in best])

    return Call("/fill-mask", {"model": model, "inputs": inputs, "top_k": 3}, check)


def token_classify(oracles: Oracles, model: str, texts: list[str]) -> Call:
    expected = [labelled(oracles, model, text) for text in texts]

    def check(entries: list[dict[str, Any]]) -> None:
        for entry, twins in zip(entries, expected, strict=True):
            assert [each["label"] for each in entry["entities"]] == [each["entity"] for each in twins]
            close([each["score"] for each in entry["entities"]], [each["score"] for each in twins])

    return Call("/token-classify", {"model": model, "inputs": texts, "aggregation": "none"}, check)


def tokenize(oracles: Oracles, model: str, texts: list[str]) -> Call:
    expected = [oracles.tokenizer(model)(text)["input_ids"] for text in texts]

    def check(entries: list[dict[str, Any]]) -> None:
        assert [entry["ids"] for entry in entries] == expected

    return Call("/tokenize", {"model": model, "inputs": texts}, check)


MAKERS: list[tuple[Callable[[Oracles, str, list[str]], Call], str]] = [
    *[(classify, f"{family}-cls") for family in ("bert", "roberta", "modernbert", "deberta", "distilbert")],
    (pairs, "electra-cls"),
    (pairs, "mpnet-cls"),
    (embed, "st-mean"),
    (embed, "st-dense"),
    (rerank, "bert-cross"),
    (similarity, "st-last"),
    (zero_shot, "bert-nli"),
    (fill_mask, "bert-mlm"),
    (fill_mask, "roberta-mlm"),
    (token_classify, "bert-ner"),
    (token_classify, "xlmr-ner"),
    (tokenize, "xlmr-cls"),
]


@pytest.fixture(scope="module")
def calls(oracles: Oracles) -> list[Call]:
    rng = random.Random(16)
    texts = iter(mixed_texts(16, 3 * REQUESTS, longest=24))
    made = []
    for _ in range(REQUESTS):
        make, model = rng.choice(MAKERS)
        count = rng.choice([1, 1, 1, 2, 3])
        made.append(make(oracles, model, [next(texts) for _ in range(count)]))
    return made


async def all_replies(server: Server, calls: list[Call]) -> list[httpx.Response]:
    waiting = iter(enumerate(calls))
    replies: dict[int, httpx.Response] = {}

    async def one_client() -> None:
        async with server.async_client(connections=1) as client:
            for number, call in waiting:
                headers = {"X-Request-Id": f"crowd-{number}"}
                replies[number] = await client.post(call.path, json=call.body, headers=headers)

    await asyncio.gather(*(one_client() for _ in range(CLIENTS)))
    return [replies[number] for number in range(len(calls))]


def test_every_reply_is_right_and_to_its_own_request(server: Server, calls: list[Call]) -> None:
    replies = asyncio.run(all_replies(server, calls))
    failed = [describe(reply) for reply in replies if reply.status_code != 200]
    assert not failed, f"{len(failed)} of {REQUESTS} failed, first: {failed[0]}"
    for number, (call, reply) in enumerate(zip(calls, replies, strict=True)):
        assert reply.headers["x-request-id"] == f"crowd-{number}"
        assert reply.json()["model"] == call.body["model"]
        call.check(served(reply))
