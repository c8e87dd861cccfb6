"""The small servers' shared parts, without a web server, and how a process that serves is stopped."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from loadtests.peers.servers.batcher import Batcher
from loadtests.peers.servers.batches import MOST, Array, Batches, Features, padded, pooled, ranked, softmax
from loadtests.servers import stop

Body = dict[str, Any]
PAD, MASK = 9, 4


class Words:
    """A token for each word, by its length; between 101 and 102."""

    pad_token_id = PAD
    mask_token_id = MASK

    def __call__(self, *columns: list[str], **options: Any) -> dict[str, list[list[int]]]:
        rows = [" ".join(texts).split() for texts in zip(*columns, strict=True)]
        ids = [[101, *map(len, row), 102][: options["max_length"]] for row in rows]
        return {
            "input_ids": ids,
            "token_type_ids": [[0] * len(one) for one in ids],
            "attention_mask": [[1] * len(one) for one in ids],
        }

    def decode(self, token: int) -> str:
        return f"<{token}>"


def summed(features: Features, places: Array | None) -> Array:
    """As logits: minus and plus the sum of the ids that the mask leaves."""
    sums = (features["input_ids"] * features["attention_mask"]).sum(axis=1)
    return np.stack([-sums, sums], axis=1) / 100


def served(task: str, forward: Callable[[Features, Array | None], Array]) -> Batches:
    return Batches(task, Words(), {0: "low", 1: "high"}, forward)


def test_features_are_padded_to_the_longest_and_masked_there() -> None:
    features = padded([{"input_ids": [1, 2], "attention_mask": [1, 1]}, {"input_ids": [3], "attention_mask": [1]}], PAD)
    assert features["input_ids"].tolist() == [[1, 2], [3, PAD]]
    assert features["attention_mask"].tolist() == [[1, 1], [1, 0]]


def test_answers_come_in_the_order_of_the_bodies_whatever_their_lengths() -> None:
    bodies = [{"text": "ab " * count} for count in (5, 1, 9, 3)]
    run = served("classify", summed)
    together = run(bodies)
    assert together == [run([body])[0] for body in bodies]
    assert [len(one["labels"]) for one in together] == [2] * 4
    assert together[0]["labels"][0]["label"] == "high"


def test_no_forward_gets_more_than_the_most_and_alike_lengths_go_together() -> None:
    shapes = []

    def forward(features: Features, places: Array | None) -> Array:
        shapes.append(features["input_ids"].shape)
        return summed(features, places)

    served("rerank", forward)([{"query": "q", "documents": ["ab"] * MOST + ["ab " * 50] * 3}])
    assert shapes == [(MOST, 4), (3, 53)]


def test_a_reply_of_rerank_has_each_request_s_documents_best_first() -> None:
    bodies = [{"query": "q", "documents": ["a a a", "a", "a a"]}, {"query": "q", "documents": ["a", "a a"]}]
    found = served("rerank", lambda features, places: summed(features, places)[:, 1:])(bodies)
    assert [[one["index"] for one in reply["results"]] for reply in found] == [[0, 2, 1], [1, 0]]
    assert ranked([0.1, 0.9])["results"][0] == {"index": 1, "score": 0.9}


def test_the_likeliest_tokens_at_the_mask_come_first() -> None:
    seen: list[list[int]] = []

    def forward(features: Features, places: Array | None) -> Array:
        assert places is not None
        seen.append(places.tolist())
        return np.tile(np.arange(20.0), (len(places), 1))

    found = served("fill-mask", forward)([{"text": "aa mask bb"}, {"text": "mask"}])
    assert seen == [[1, 2]]
    assert [entry["token"] for entry in found[0]["tokens"]] == [19, 18, 17, 16, 15]
    assert found[0]["tokens"][0]["token_str"] == "<19>"


def test_a_vector_is_the_unit_mean_over_the_tokens_that_are_not_padding() -> None:
    hidden = np.array([[[3.0, 0.0], [0.0, 4.0], [99.0, 99.0]]])
    assert pooled(hidden, np.array([[1, 1, 0]])).tolist() == [[pytest.approx(0.6), pytest.approx(0.8)]]


def test_softmax_sums_to_one_and_bears_great_logits() -> None:
    assert softmax(np.array([[1e4, 1e4]])).tolist() == [[0.5, 0.5]]


async def test_what_waits_while_a_batch_runs_is_the_next_batch() -> None:
    sizes, go = [], threading.Event()

    def run(bodies: list[Body]) -> list[Body]:
        sizes.append(len(bodies))
        assert go.wait(5)
        return [{"answer": body["number"]} for body in bodies]

    batcher = Batcher(run, most=4)
    first = asyncio.create_task(batcher({"number": 0}))
    while not sizes:
        await asyncio.sleep(0.001)
    others = [asyncio.create_task(batcher({"number": number})) for number in range(1, 7)]
    await asyncio.sleep(0)
    go.set()
    assert await asyncio.gather(first, *others) == [{"answer": number} for number in range(7)]
    assert sizes == [1, 4, 2]


async def test_a_batch_that_fails_fails_its_requests_and_no_later_one() -> None:
    def run(bodies: list[Body]) -> list[Body]:
        if "bad" in bodies[0]:
            raise ValueError("no")
        return bodies

    batcher = Batcher(run)
    with pytest.raises(ValueError, match="no"):
        await batcher({"bad": 1})
    assert await batcher({"good": 1}) == {"good": 1}


def test_what_a_server_leaves_behind_is_ended_with_it() -> None:
    code = (
        "import subprocess, sys, time\nchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
    )
    code += "\nprint(child.pid, flush=True)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert stop(process, 10) < 0
        until = time.monotonic() + 10
        while alive(child) and time.monotonic() < until:
            time.sleep(0.01)
        assert not alive(child)


def alive(pid: int) -> bool:
    """Whether it runs; a process that has ended may wait to be collected."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return os.path.exists(f"/proc/{pid}")
