"""What is tried again, how often, and what ends a call at once; pause, silence and cancellation."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from adapters.engines.base import ContractError, EngineFailure, EngineRefusal, EngineUnreachable
from sidecar.generation.controller import Limits, Stalled
from sidecar.generation.gate import Pause
from tests.fake_sglang import Fault, faults
from tests.generation.driver import Driver, driving
from tests.support.waiting import until

PREEMPTED = faults.EngineAbort(0, None, None, "Aborted")


def a_pause() -> Pause:
    return Pause("p", "all", "abort", None, time.time() + 60)


@pytest.mark.parametrize(
    "fault",
    [
        faults.HttpError(503, {"error": {"message": "The request queue is full."}}),
        faults.EngineAbort(0, 503, "Busy", "busy"),
        faults.StreamError(0, "busy", 503),
        faults.DropConnection(0),
    ],
    ids=["http", "abort", "event", "connection"],
)
async def test_what_may_pass_is_tried_so_many_times_and_no_more(qwen3_dir: Path, fault: Fault) -> None:
    async with driving(qwen3_dir, limits=Limits(engine_retries=2)) as driver:
        expected = driver.says()
        driver.engine.fail_next(fault, 2)
        driver.assert_pieces(await driver.run(), expected)
        assert len(driver.requests) == 3
        driver.says()
        driver.engine.fail_next(fault, 3)
        with pytest.raises((EngineFailure, EngineUnreachable)):
            await driver.run()
        assert len(driver.requests) == 6


async def test_progress_between_failures_starts_the_count_anew(qwen3_dir: Path) -> None:
    async with driving(qwen3_dir, limits=Limits(engine_retries=1)) as driver:
        expected = driver.says(faults=faults.DropConnection(3))
        running = driver.start()
        await driver.at_hold()
        driver.engine.fail_next(faults.DropConnection(2))
        driver.assert_pieces(await running, expected)
        assert len(driver.requests) == 3


async def test_a_sampler_with_a_state_makes_no_progress_by_starting_over(qwen3_dir: Path) -> None:
    async with driving(qwen3_dir, limits=Limits(engine_retries=1)) as driver:
        driver.says()
        driver.engine.fail_next(faults.DropConnection(3), 2)
        with pytest.raises(EngineUnreachable):
            await driver.run(driver.generation(frequency_penalty=1.0))
        assert len(driver.requests) == 2


@pytest.mark.parametrize("retries", [0, 1])
async def test_an_engine_that_is_down_is_unreachable_when_the_retries_are_used_up(
    qwen3_dir: Path, retries: int
) -> None:
    async with driving(qwen3_dir, limits=Limits(engine_retries=retries)) as driver:
        await driver.engine.down()
        generation = driver.generation()
        with pytest.raises(EngineUnreachable):
            await driver.run(generation)
        assert (generation.output_ids, generation.finish) == ([], None)
        assert not driver.controller.active


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (faults.HttpError(400), EngineRefusal),
        (faults.HttpError(500), EngineFailure),
        (faults.EngineAbort(2, 400, "BadRequest"), EngineRefusal),
        (faults.EngineAbort(2, 500, "Internal"), EngineFailure),
        (faults.StreamError(2, "no", 400), EngineRefusal),
        (faults.LogprobCount(-1), ContractError),
        (faults.CompletionTokens(1), ContractError),
        (faults.GarbageChunk(1), ContractError),
        (faults.GarbageChunk(1, b'data: {"text": "no meta_info"}\n\n'), ContractError),
        (faults.HtmlBody(200), ContractError),
    ],
)
async def test_what_will_not_pass_is_not_tried_again(
    any_driver: Driver, fault: Fault, error: type[Exception]
) -> None:
    any_driver.says(faults=fault)
    generation = any_driver.generation()
    with pytest.raises(error):
        await any_driver.run(generation)
    assert generation.finish is None
    assert len(any_driver.requests) == 1
    assert not any_driver.controller.active


async def test_preemptions_without_a_token_are_a_stall_after_so_many(qwen3_dir: Path) -> None:
    async with driving(qwen3_dir, limits=Limits(max_stalled_resumes=2)) as driver:
        driver.says(faults=faults.EngineAbort(3, None, None))
        running = driver.start()
        await driver.at_hold()
        driver.engine.fail_next(PREEMPTED, 3)
        with pytest.raises(Stalled, match="3 times without a new token"):
            await running
        assert [len(request.output_ids) for request in driver.requests] == [3, 0, 0, 0]


async def test_a_token_between_preemptions_is_progress(qwen3_dir: Path) -> None:
    async with driving(qwen3_dir, limits=Limits(max_stalled_resumes=1)) as driver:
        expected = driver.says()
        for _ in range(3):
            driver.engine.fail_next(PREEMPTED)
            driver.engine.fail_next(faults.EngineAbort(1, None, None))
        driver.assert_pieces(await driver.run(), expected)
        assert len(driver.requests) == 7


async def test_preemptions_during_a_pause_of_ours_are_no_stall(qwen3_dir: Path) -> None:
    async with driving(qwen3_dir, limits=Limits(max_stalled_resumes=0)) as driver:
        expected = driver.says(queue=asyncio.Event())
        running = driver.start()
        await driver.in_queue()
        driver.gate.add(a_pause())
        assert (await driver.abort_active(10))[1] == []
        assert len(driver.requests) == 1
        driver.gate.lift("p")
        driver.assert_pieces(await running, expected)


# Pause, silence, cancellation.


async def test_a_closed_gate_holds_the_next_request_back(driver: Driver) -> None:
    expected = driver.says(hold=asyncio.Event(), hold_after=3)
    running = driver.start()
    first = await driver.at_hold()
    driver.gate.add(a_pause())
    assert driver.gate.suspended == 0
    assert await driver.abort_active(10) == ([first.rid], [])
    assert not driver.controller.active
    await until(lambda: driver.gate.suspended, "a call held at the gate")
    assert len(driver.requests) == 1
    driver.gate.lift(None)
    driver.assert_pieces(await running, expected)


async def test_aborting_what_does_not_run_is_nothing(driver: Driver) -> None:
    assert await driver.abort_active(10) == ([], [])
    assert not driver.engine.calls


async def test_an_engine_that_is_silent_but_alive_is_waited_for(qwen3_dir: Path) -> None:
    async with driving(qwen3_dir, silence=0.05) as driver:
        hold = asyncio.Event()
        expected = driver.says(hold=hold, hold_after=3)
        running = driver.start()
        await driver.at_hold()
        await until(lambda: len(driver.engine.recorder.calls_to("/model_info")) > 1, "questions to the engine")
        hold.set()
        driver.assert_pieces(await running, expected)
        assert len(driver.requests) == 1


@pytest.mark.parametrize("after", [0, 3])
async def test_cancelling_closes_the_call_and_the_engine_aborts(driver: Driver, after: int) -> None:
    hold: dict[str, Any] = {"hold": asyncio.Event(), "hold_after": after} if after else {"queue": asyncio.Event()}
    driver.says(**hold)
    generation = driver.generation()
    running = driver.start(generation)
    request = await driver.at_hold(after=after)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await driver.engine.wait_until(lambda: request.done)
    assert request.outcome == "disconnected"
    assert not driver.controller.active
    assert generation.finish is None


async def test_a_generation_that_was_cancelled_goes_on_from_its_ids(driver: Driver) -> None:
    expected = driver.says(hold=asyncio.Event(), hold_after=3)
    generation = driver.generation()
    running = driver.start(generation)
    request = await driver.at_hold()
    await until(lambda: len(generation.output_ids) == 3, "three ids")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await driver.engine.wait_until(lambda: request.done)
    driver.assert_pieces(await driver.run(generation), expected)
