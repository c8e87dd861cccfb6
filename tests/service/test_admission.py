"""What is let in, what is refused and how, and that nothing refused or dropped leaves a trace in the queue."""

import asyncio
from typing import Any

import pytest

from padserve.errors import (
    DeadlineExceeded,
    Draining,
    EmptyInputs,
    QueueFull,
    Starting,
    TooManyTokens,
    UnknownModel,
    WrongTask,
)

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("inputs", ["x" * 60, ["x" * 60], ["x" * 30, "y" * 30]])
async def test_a_full_queue_refuses_single_and_list_alike(inputs: Any, stage: Any, sum_of: Any) -> None:
    async with stage(max_queue_tokens=100) as s:
        held = await s.hold()
        waiting = asyncio.create_task(s.run("w" * 50))
        await s.queued(50)
        with pytest.raises(QueueFull) as caught:
            await s.run(inputs)
        assert caught.value.status == 429
        assert 1 <= caught.value.retry_after_s <= 60
        assert caught.value.extra == {"waiting_tokens": 50, "max_queue_tokens": 100}
        assert s.waiting_tokens == 50
        fits = asyncio.create_task(s.run("f" * 50))
        await s.queued(100)
        with pytest.raises(QueueFull):
            await s.run("z")
        s.model.gate.set()
        for request, text in ((held, "held"), (waiting, "w" * 50), (fits, "f" * 50)):
            assert (await request).results[0].total == sum_of(text)
        assert (await s.run("z")).results[0].total == sum_of("z")
        assert 'padserve_rejected_total{reason="queue_full"} 2.0' in s.metrics.render().decode()


@pytest.mark.parametrize("inputs", ["x" * 101, ["x" * 101], ["x" * 51, "y" * 50]])
async def test_what_can_never_fit_is_refused_for_good(inputs: Any, stage: Any) -> None:
    async with stage(max_queue_tokens=100) as s:
        with pytest.raises(TooManyTokens) as caught:
            await s.run(inputs)
        assert caught.value.status == 413
        assert caught.value.extra == {"tokens": 101, "max_queue_tokens": 100}
        assert (await s.run("x" * 100)).results[0].tokens == 100


async def test_a_flood_is_bounded_and_the_service_is_well_afterwards(stage: Any, sum_of: Any) -> None:
    async with stage(max_queue_tokens=200) as s:
        held = await s.hold()
        flood = [asyncio.create_task(s.run("x" * 10)) for _ in range(300)]
        await asyncio.wait(flood, timeout=0.5)
        assert s.waiting_tokens <= 200
        s.model.gate.set()
        outcomes = await asyncio.gather(held, *flood, return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, QueueFull)]
        served = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        assert len(refused) + len(served) == 301
        assert len(refused) >= 260
        assert len(served) >= 21
        assert s.waiting_tokens == 0
        assert (await s.run("after")).results[0].total == sum_of("after")


@pytest.mark.parametrize(("field_ms", "header_ms"), [(50, None), (None, 50), (60_000, 50), (50, 60_000)])
async def test_a_deadline_in_the_queue_is_504_and_the_entry_never_runs(
    field_ms: int | None, header_ms: int | None, stage: Any
) -> None:
    async with stage() as s:
        held = await s.hold()
        with pytest.raises(DeadlineExceeded) as caught:
            await s.run(["late", "too late"], header_ms, timeout_ms=field_ms)
        assert caught.value.status == 504
        assert s.waiting_tokens == 0
        s.model.gate.set()
        await held
        assert (await s.run("next")).results[0].text == "next"
        assert s.model.ran == ["held", "next"]
        assert 'padserve_rejected_total{reason="deadline_exceeded"} 1.0' in s.metrics.render().decode()


async def test_a_deadline_while_it_runs_is_504_too(stage: Any) -> None:
    async with stage() as s:
        s.model.gate.clear()
        with pytest.raises(DeadlineExceeded):
            await s.run("slow", timeout_ms=50)
        s.model.gate.set()
        assert (await s.run("next")).results[0].text == "next"


async def test_a_deadline_that_is_met_changes_nothing(stage: Any) -> None:
    async with stage() as s:
        assert (await s.run("quick", 60_000, timeout_ms=60_000)).results[0].text == "quick"


async def test_cancelled_requests_leave_nothing_behind(stage: Any, wait_for: Any) -> None:
    """Two hundred clients leave: before their request is queued, while it waits, and while it runs."""
    async with stage(max_queue_tokens=10_000) as s:
        held = await s.hold()
        for round_ in range(20):
            requests = [asyncio.create_task(s.run(["gone" * 3, "gone too"])) for _ in range(10)]
            if round_ % 2:
                await s.queued(200)
            else:
                await asyncio.sleep(0)
            for request in requests:
                request.cancel()
            outcomes = await asyncio.gather(*requests, return_exceptions=True)
            assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
            assert s.waiting_tokens == 0
        held.cancel()
        with pytest.raises(asyncio.CancelledError):
            await held
        s.model.gate.set()
        assert (await s.run("after")).results[0].text == "after"
        assert s.model.ran == ["held", "after"]
        await wait_for(lambda: s.service._in_flight == 0)
        text = s.metrics.render().decode()
        assert 'padserve_cancelled_total{model="m"} 201.0' in text
        assert 'padserve_queue_depth{model="m"} 0.0' in text


async def test_draining_refuses_the_new_and_finishes_the_accepted(stage: Any) -> None:
    async with stage() as s:
        held = await s.hold()
        waiting = asyncio.create_task(s.run("accepted"))
        await s.queued(8)
        s.service.start_draining()
        readiness = s.service.readiness()
        assert not readiness.ready
        assert readiness.reasons == ["the server is draining"]
        with pytest.raises(Draining) as caught:
            await s.run("new")
        assert caught.value.status == 503
        drained = asyncio.create_task(s.service.drained())
        await asyncio.sleep(0.02)
        assert not drained.done()
        s.model.gate.set()
        assert [(await request).results[0].text for request in (held, waiting)] == ["held", "accepted"]
        await asyncio.wait_for(drained, 5)


async def test_nothing_to_drain_is_drained_at_once(stage: Any) -> None:
    async with stage() as s:
        s.service.start_draining()
        await asyncio.wait_for(s.service.drained(), 1)


async def test_requests_are_refused_while_models_load(unstarted: Any) -> None:
    s = unstarted(names=("m", "n"))
    s.loading.clear()
    starting = asyncio.create_task(s.engine.start())
    with pytest.raises(Starting) as caught:
        await s.run("early")
    assert (caught.value.status, caught.value.retry_after_s > 0) == (503, True)
    readiness = s.service.readiness()
    assert (readiness.ready, readiness.started) == (False, False)
    assert readiness.reasons == ["model m is loading", "model n is loading"]
    s.loading.set()
    await starting
    readiness = s.service.readiness()
    assert (readiness.ready, readiness.started, readiness.reasons) == (True, True, [])
    assert (await s.run("late enough")).results[0].text == "late enough"
    await asyncio.to_thread(s.engine.stop, 5)
    s.tokenizers.close()


async def test_no_inputs(stage: Any) -> None:
    async with stage() as s:
        with pytest.raises(EmptyInputs):
            await s.run([])


async def test_models_and_tasks_that_are_not_there(stage: Any) -> None:
    async with stage(names=("m", "n")) as s:
        with pytest.raises(UnknownModel, match="served are m, n"):
            await s.run("x", model="o")
        assert (await s.run("x", model="n")).model == "n"
        assert (await s.run("x")).model == "m"
        s.echo.name = "other"  # type: ignore[misc]
        for model in (None, "m"):
            with pytest.raises(WrongTask):
                await s.run("x", model=model)
