"""A user class a task, each reply checked against its request. Started by ``run.py``, which sets the environment.

Half of a user's requests are fresh, the other half from a small pool whose inputs were each asked alone before the
load began: their replies must be the same under load, whatever they were batched with.
"""

import itertools
import json
import os
import random
from collections.abc import Iterator
from typing import Any, ClassVar

from locust import FastHttpUser, LoadTestShape, constant_pacing, events, task

from loadtests.cases import CASES, Body, Case, differs, judged, singles
from loadtests.servers import post

USERS = int(os.environ.get("LOADTEST_USERS", "16"))
DURATION_S = float(os.environ.get("LOADTEST_DURATION_S", "30"))
TOLERANCE = float(os.environ.get("LOADTEST_TOLERANCE", "1e-3"))
SHAPE = os.environ.get("LOADTEST_SHAPE", "steady")
POOL = 12
SEED = 7

Known = tuple[Body, list[float]]


def asked_alone(base: str, route: str, case: Case) -> Iterator[Known]:
    """Bodies and the numbers of their replies, each input of a list in a request of its own."""
    rng = random.Random(SEED)
    for _ in range(POOL):
        body = case.body(rng)
        numbers: list[float] = []
        for single in singles(body):
            results = post(f"{base}/{route}", json.dumps(single).encode())["results"]
            fault = judged(case, single, results)
            if fault is not None:
                raise RuntimeError(f"/{route}, before the load: {fault}")
            numbers += case.numbers(single, results)
        yield body, numbers


@events.init.add_listener
def learn(environment: Any, **_: Any) -> None:
    """Before the run's time begins. Errors: `SystemExit`, as Locust logs any other and goes on."""
    try:
        for user in environment.user_classes:
            user.known = list(asked_alone(environment.host, user.route, CASES[user.route]))
    except (RuntimeError, OSError, LookupError) as error:
        raise SystemExit(f"no load was made: {error}") from error


class TaskUser(FastHttpUser):
    """One request after the other, at most two a second."""

    abstract = True
    route: ClassVar[str]
    known: ClassVar[list[Known]]
    numbered: ClassVar[Iterator[int]] = itertools.count()
    wait_time = constant_pacing(0.5)

    def on_start(self) -> None:
        self.rng = random.Random(SEED + next(self.numbered))

    @task
    def ask(self) -> None:
        case = CASES[self.route]
        body, alone = self.rng.choice(self.known) if self.rng.random() < 0.5 else (case.body(self.rng), None)
        with self.client.post(f"/{self.route}", json=body, catch_response=True) as reply:
            if reply.status_code != 200:
                reply.failure(f"status {reply.status_code}: {(reply.text or repr(reply.error))[:200]}")
                return
            fault = fault_of(case, body, alone, reply.text)
            if fault is not None:
                reply.failure(fault)


def fault_of(case: Case, body: Body, alone: list[float] | None, reply: str) -> str | None:
    """Never raises: what is raised while a reply is checked would leave the request out of the statistics."""
    try:
        results = json.loads(reply)["results"]
        fault = judged(case, body, results)
        if fault is None and alone is not None:
            fault = differs(case.numbers(body, results), alone, TOLERANCE)
    except Exception as error:
        return f"a reply that cannot be checked: {error!r}"
    return fault


class FillMaskUser(TaskUser):
    route = "fill-mask"


class ClassifyUser(TaskUser):
    route = "classify"


class ZeroShotUser(TaskUser):
    route = "zero-shot"


class TokenClassifyUser(TaskUser):
    route = "token-classify"


class EmbedUser(TaskUser):
    route = "embed"


class RerankUser(TaskUser):
    route = "rerank"


class SimilarityUser(TaskUser):
    route = "similarity"


class TokenizeUser(TaskUser):
    route = "tokenize"


class Steady(LoadTestShape):
    """All users from the start."""

    abstract = SHAPE != "steady"

    def tick(self) -> tuple[int, float] | None:
        return None if self.get_run_time() > DURATION_S else (USERS, USERS)


class Ramp(LoadTestShape):
    """A quarter more of the users in each quarter of the time."""

    abstract = SHAPE != "ramp"

    def tick(self) -> tuple[int, float] | None:
        elapsed = self.get_run_time()
        if elapsed > DURATION_S:
            return None
        quarter = min(int(4 * elapsed / DURATION_S) + 1, 4)
        return max(round(USERS * quarter / 4), 1), USERS
