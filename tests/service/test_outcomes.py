"""Every accepted request ends once, with its own results, whatever happens to its neighbours or to the worker."""

import asyncio
import logging
import time
from typing import Any

import pytest

from padserve.batching.workers import Supervision
from padserve.errors import Draining, EngineDown, InternalError, InvalidField, NonfiniteOutput
from padserve.tasks.base import ItemError

pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1)


@pytest.mark.parametrize("workers", [1, 2])
async def test_sixty_four_at_once_each_get_their_own(workers: int, stage: Any, sum_of: Any) -> None:
    async with stage(max_queue_tokens=100_000, workers=workers) as s:
        texts = [
            [chr(97 + (i * 7 + j) % 26) * (1 + (i + j) % 20) + str(i) for j in range(i % 5 + 1)] for i in range(64)
        ]
        replies = await asyncio.gather(*(s.run(own if i % 2 else own[0]) for i, own in enumerate(texts)))
        for i, (own, reply) in enumerate(zip(texts, replies, strict=True)):
            own = own if i % 2 else own[:1]
            assert [result.text for result in reply.results] == own
            assert [result.total for result in reply.results] == [sum_of(text) for text in own]
            assert reply.usage.input_tokens == sum(map(len, own))
        assert s.waiting_tokens == 0


async def test_bad_items_fail_in_their_places(stage: Any, sum_of: Any) -> None:
    async with stage() as s:
        reply = await s.run(["good", "bad!", "?", "nan%", "fine"])
        kinds = [result.error.code if isinstance(result, ItemError) else result.text for result in reply.results]
        assert kinds == ["good", "internal_error", "invalid_field", "nonfinite_output", "fine"]
        assert [reply.results[i].total for i in (0, 4)] == [sum_of("good"), sum_of("fine")]
        assert reply.usage.input_tokens == len("goodfine")
        assert 'padserve_failed_items_total{model="m"} 2.0' in s.metrics.render().decode()


@pytest.mark.parametrize(
    ("inputs", "error"),
    [
        ("bad!", InternalError),
        (["bad!"], InternalError),
        ("nan%", NonfiniteOutput),
        (["nan%", "nan%"], NonfiniteOutput),
        ("?", InvalidField),
        (["?", "bad!"], InvalidField),
    ],
)
async def test_when_all_fail_the_request_does(inputs: Any, error: type[Exception], stage: Any) -> None:
    async with stage() as s:
        with pytest.raises(error):
            await s.run(inputs)
        assert s.waiting_tokens == 0
        assert (await s.run("after")).results[0].text == "after"


async def test_a_bad_request_does_not_touch_the_one_beside_it(stage: Any) -> None:
    async with stage() as s:
        held = await s.hold()
        neighbours = [asyncio.create_task(s.run(text)) for text in ("one", "bad!", "two", "nan%")]
        await s.queued(3 + 4 + 3 + 4)
        s.model.gate.set()
        outcomes = await asyncio.gather(held, *neighbours, return_exceptions=True)
        assert [type(outcome).__name__ for outcome in outcomes] == [
            "Reply",
            "Reply",
            "InternalError",
            "Reply",
            "NonfiniteOutput",
        ]


async def test_a_plan_that_raises_ends_its_request_only(stage: Any, monkeypatch: Any) -> None:
    async with stage() as s:
        plan = s.echo.plan

        def broken(request: Any, *rest: Any) -> Any:
            if request.inputs == "break":
                raise RuntimeError("a bug in a task")
            return plan(request, *rest)

        monkeypatch.setattr(s.echo, "plan", broken)
        with pytest.raises(RuntimeError, match="a bug in a task"):
            await s.run("break")
        assert (await s.run("fine")).results[0].text == "fine"
        await asyncio.wait_for(s.service.drained(), 1)


async def test_timings_tell_of_the_batch(stage: Any) -> None:
    async with stage() as s:
        held = await s.hold()
        waiting = [asyncio.create_task(s.run(text)) for text in ("abc", "de")]
        await s.queued(5)
        await asyncio.sleep(0.05)
        s.model.gate.set()
        await held
        for request in waiting:
            timings = (await request).timings
            assert (timings.batch_tokens, timings.batch_size) == (5, 2)
            assert 0.05 <= timings.queue_s < 5
            assert timings.run_s >= 0
            assert timings.tokenize_s > 0
            assert timings.post_s > 0


async def test_a_dead_worker_ends_its_requests_turns_health_red_and_returns(stage: Any, wait_for: Any) -> None:
    async with stage(supervision=Supervision(restart_delay_s=0.3)) as s:
        started = time.monotonic()
        with pytest.raises(EngineDown) as caught:
            await s.run("die$")
        assert time.monotonic() - started < 0.25
        assert caught.value.status == 503
        readiness = s.service.readiness()
        assert not readiness.ready
        assert readiness.started
        assert "worker 0 died" in readiness.reasons[0]
        with pytest.raises(EngineDown):
            await s.run("meanwhile")
        await wait_for(lambda: s.service.readiness().ready)
        assert (await s.run("again")).results[0].text == "again"
        assert s.fatal == []


async def test_what_waits_behind_a_death_is_served_after_it(stage: Any) -> None:
    async with stage(max_batch_tokens=64) as s:
        held = await s.hold("$" + "x" * 59)
        waiting = asyncio.create_task(s.run("w" * 60))
        await s.queued(60)
        s.model.gate.set()
        with pytest.raises(EngineDown):
            await held
        assert (await waiting).results[0].text == "w" * 60


async def test_repeated_deaths_end_everything(stage: Any, wait_for: Any) -> None:
    async with stage(supervision=Supervision(restart_delay_s=0.01, max_deaths=2)) as s:
        with pytest.raises(EngineDown):
            await s.run("die$")
        await wait_for(lambda: s.service.readiness().ready)
        held = await s.hold("$" + "x" * 59)
        waiting = asyncio.create_task(s.run("w" * 60))
        await s.queued(60)
        s.model.gate.set()
        for request in (held, waiting):
            with pytest.raises(EngineDown):
                await asyncio.wait_for(request, 5)
        await wait_for(lambda: len(s.fatal) == 1)
        assert "died repeatedly" in s.service.readiness().reasons[0]
        with pytest.raises(EngineDown):
            await s.run("never")


async def test_stopping_ends_what_waits(stage: Any) -> None:
    async with stage() as s:
        held = await s.hold()
        waiting = asyncio.create_task(s.run("waits"))
        await s.queued(5)
        stopping = asyncio.create_task(asyncio.to_thread(s.engine.stop, 5))
        with pytest.raises(Draining):
            await asyncio.wait_for(waiting, 2)
        with pytest.raises(Draining):
            await asyncio.wait_for(s.run("after the end"), 2)
        s.model.gate.set()
        assert (await held).results[0].text == "held"
        await asyncio.wait_for(stopping, 2)


async def test_a_load_that_fails_is_told() -> None:
    from padserve.batching.placement import Placement
    from padserve.config.structs import ModelConfig
    from padserve.errors import ConfigError
    from padserve.service.engine import Engine
    from padserve.telemetry.metrics import Metrics

    def load(config: ModelConfig) -> Any:
        raise ConfigError("no such model")

    engine = Engine([ModelConfig(name="m", source="m")], load, Placement(1, 1, 1.0, ""), Metrics(), lambda error: None)
    with pytest.raises(ConfigError, match="no such model"):
        await engine.start()
    assert not engine.started
    await asyncio.to_thread(engine.stop, 1)


async def test_two_models_share_the_worker_by_time(stage: Any) -> None:
    """A flood on one model holds a single request to the other up for no more than a few batches."""
    async with stage(names=("m", "n"), max_queue_tokens=100_000, seconds_a_token=50e-6) as s:
        flood = [asyncio.create_task(s.run("x" * 60, model="m")) for _ in range(120)]
        await asyncio.sleep(0.05)
        for _ in range(5):
            served_before = sum(request.done() for request in flood)
            assert (await s.run("quick", model="n")).results[0].text == "quick"
            assert sum(request.done() for request in flood) - served_before <= 8
        assert not all(request.done() for request in flood), "the flood was over too soon to show anything"
        await asyncio.gather(*flood)


async def test_interactive_overtakes_bulk(stage: Any) -> None:
    async with stage(max_batch_tokens=64) as s:
        held = await s.hold()
        bulk = [asyncio.create_task(s.run("b" * 60, priority="bulk")) for _ in range(5)]
        await s.queued(300)
        interactive = asyncio.create_task(s.run("i" * 60))
        await s.queued(360)
        s.model.gate.set()
        await asyncio.gather(held, interactive, *bulk)
        assert s.model.ran.index("i" * 60) <= 2
        assert s.model.ran.count("b" * 60) == 5


async def test_live_facts_of_a_model(stage: Any) -> None:
    async with stage() as s:
        held = await s.hold()
        waiting = asyncio.create_task(s.run("waits"))
        await s.queued(5)
        status = s.service.model_status("m")
        assert (status["queue_depth"], status["queue_tokens"]) == (1, 5)
        assert (status["name"], status["tasks"], status["runs"], status["workers"]) == ("m", ["echo"], "echo", 1)
        s.model.gate.set()
        await asyncio.gather(held, waiting)
