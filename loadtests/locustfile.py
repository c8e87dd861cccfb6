"""A user class a task, each reply checked against its request. Started by ``run.py``."""

import os
import random
from typing import Any, ClassVar

from locust import FastHttpUser, LoadTestShape, constant_pacing, task

from loadtests.texts import bimodal, lognormal, long, short, text

SHAPE = os.environ.get("LOADTEST_SHAPE", "steady")
USERS = int(os.environ.get("LOADTEST_USERS", "16"))
DURATION_S = float(os.environ.get("LOADTEST_DURATION_S", "30"))


class TaskUser(FastHttpUser):
    """One request after the other, at most two a second."""

    abstract = True
    route: ClassVar[str]
    wait_time = constant_pacing(0.5)

    def on_start(self) -> None:
        self.rng = random.Random(id(self))

    def body(self) -> dict[str, Any]:
        raise NotImplementedError

    def fault(self, body: dict[str, Any], results: list[dict[str, Any]]) -> str | None:
        """What is wrong with a reply to this body, None when nothing is."""
        raise NotImplementedError

    @task
    def ask(self) -> None:
        body = self.body()
        with self.client.post(f"/{self.route}", json=body, catch_response=True) as reply:
            if reply.status_code != 200:
                reply.failure(f"status {reply.status_code}: {reply.text[:200]}")
                return
            fault = self.fault(body, reply.json()["results"])
            if fault is not None:
                reply.failure(fault)


class FillMaskUser(TaskUser):
    route = "fill-mask"

    def body(self) -> dict[str, Any]:
        return {"inputs": f"{text(self.rng, short(self.rng))} [MASK] {text(self.rng, 3)}", "top_k": 3}

    def fault(self, body: dict[str, Any], results: list[dict[str, Any]]) -> str | None:
        start = body["inputs"].split(" [MASK]")[0]
        good = all(one["sequence"].startswith(start) for one in results[0]["masks"][0])
        return None if good else "a sequence of another request"


class ClassifyUser(TaskUser):
    route = "classify"

    def body(self) -> dict[str, Any]:
        return {"inputs": [text(self.rng, bimodal(self.rng)) for _ in range(self.rng.randint(1, 4))], "top_k": 1}

    def fault(self, body: dict[str, Any], results: list[dict[str, Any]]) -> str | None:
        return None if len(results) == len(body["inputs"]) else "another number of results"


class ZeroShotUser(TaskUser):
    route = "zero-shot"

    def body(self) -> dict[str, Any]:
        return {"inputs": text(self.rng, lognormal(self.rng)), "labels": self.rng.sample(["sport", "law", "art"], 2)}

    def fault(self, body: dict[str, Any], results: list[dict[str, Any]]) -> str | None:
        got = {label["label"] for label in results[0]["labels"]}
        return None if got == set(body["labels"]) else "labels of another request"


class TokenClassifyUser(TaskUser):
    route = "token-classify"

    def body(self) -> dict[str, Any]:
        name = self.rng.choice(["Maria Silva", "John Smith", "Anna Kowalska"])
        return {"inputs": f"My name is {name} and {text(self.rng, lognormal(self.rng))}"}

    def fault(self, body: dict[str, Any], results: list[dict[str, Any]]) -> str | None:
        found = results[0]["entities"]
        good = all(body["inputs"][one["start"] : one["end"]] == one["text"] for one in found)
        return None if good else "entities of another request"


class EmbedUser(TaskUser):
    route = "embed"

    def body(self) -> dict[str, Any]:
        return {"inputs": [text(self.rng, lognormal(self.rng)) for _ in range(self.rng.randint(1, 3))]}

    def fault(self, body: dict[str, Any], results: list[dict[str, Any]]) -> str | None:
        return None if len(results) == len(body["inputs"]) else "another number of results"


class RerankUser(TaskUser):
    route = "rerank"

    def body(self) -> dict[str, Any]:
        documents = [text(self.rng, lognormal(self.rng)) for _ in range(4)]
        return {"query": text(self.rng, short(self.rng)), "documents": documents, "return_documents": True}

    def fault(self, body: dict[str, Any], results: list[dict[str, Any]]) -> str | None:
        good = all(one["document"] == body["documents"][one["index"]] for one in results)
        return None if good and len(results) == 4 else "documents of another request"


class SimilarityUser(TaskUser):
    route = "similarity"

    def body(self) -> dict[str, Any]:
        source = text(self.rng, short(self.rng))
        return {"inputs": {"source": source, "sentences": [source, text(self.rng, 9)]}}

    def fault(self, body: dict[str, Any], results: list[dict[str, Any]]) -> str | None:
        return None if abs(results[0]["scores"][0] - 1) < 1e-3 else "a text is unlike itself"


class TokenizeUser(TaskUser):
    route = "tokenize"

    def body(self) -> dict[str, Any]:
        return {"inputs": text(self.rng, long(self.rng))}

    def fault(self, body: dict[str, Any], results: list[dict[str, Any]]) -> str | None:
        end = results[0]["offsets"][-2][1]
        return None if end == len(body["inputs"]) else "offsets of another request"


class Shape(LoadTestShape):
    """``steady``: all users from the start. ``ramp``: a quarter more of them in each quarter of the time."""

    def tick(self) -> tuple[int, float] | None:
        elapsed = self.get_run_time()
        if elapsed > DURATION_S:
            return None
        share = 1.0 if SHAPE == "steady" else min(int(4 * elapsed / DURATION_S) + 1, 4) / 4
        return max(round(USERS * share), 1), USERS
