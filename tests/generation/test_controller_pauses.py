"""Pauses and the controller: a call is at the gate or in flight, and aborts reach those of the scope only."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from sidecar.generation.controller import Limits
from sidecar.generation.gate import Pause
from sidecar.generation.generation import Generation
from tests.generation.driver import PROMPT, Driver, driving
from tests.support.waiting import until


def pause(scope: str = "all") -> Pause:
    return Pause("p", scope, "abort", None, time.time() + 60)


async def test_a_pause_that_comes_just_before_the_gate_holds_the_call(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a step has to wait for before it asks the engine again comes before the gate, not behind it."""
    settling, settled = asyncio.Event(), asyncio.Event()

    async def slowly(self: Generation) -> None:
        settling.set()
        await settled.wait()

    monkeypatch.setattr(Generation, "settle_rows", slowly)
    expected = driver.says()
    task = driver.start()
    await settling.wait()
    driver.gate.add(pause())
    assert await driver.abort_active(10) == ([], [])  # quiet
    settled.set()
    await until(lambda: driver.gate.suspended, "the call held at the gate")
    assert not driver.requests
    driver.gate.lift("p")
    assert (await task).output_ids == expected


@pytest.mark.parametrize("how", ["down", "cut"])
async def test_what_breaks_while_paused_is_no_failure_of_the_engine(qwen3_dir: Path, how: str) -> None:
    async with driving(qwen3_dir, limits=Limits(engine_retries=0)) as driver:
        expected = driver.says(hold=asyncio.Event(), hold_after=3)
        task = driver.start()
        first = await driver.at_hold()
        driver.gate.add(pause())
        if how == "down":
            await driver.engine.down()
        else:
            await driver.engine.state.pause("in_place")
            await driver.abort_active(1)  # no abort is acted on: the connection is cut
        await until(lambda: driver.gate.suspended, "the call held at the gate")
        assert not driver.controller.active
        await (driver.engine.up() if how == "down" else driver.engine.state.resume())
        driver.gate.lift("p")
        driver.assert_pieces(await task, expected)
        assert driver.requests[1].input_ids[: len(first.input_ids)] == list(PROMPT)


async def test_an_abort_of_a_scope_leaves_others_alone(driver: Driver) -> None:
    expected = driver.says(hold=(open_ := asyncio.Event()), hold_after=3)
    task = driver.start()
    first = await driver.at_hold()
    assert await driver.abort_active(10, "session:another") == ([], [])
    assert await driver.abort_active(10, "instance:s") == ([], [])
    assert driver.controller.active.of("session:s") == [first.rid]
    assert not driver.engine.recorder.calls_to("/abort_request")
    assert await driver.abort_active(10, "session:s") == ([first.rid], [])
    open_.set()
    driver.assert_pieces(await task, expected)
    assert len(driver.requests) == 2


async def test_an_abort_is_repeated_until_the_call_has_ended(driver: Driver) -> None:
    driver.says(hold=asyncio.Event(), hold_after=3)
    task = driver.start()
    first = await driver.at_hold()
    await driver.engine.state.pause("in_place")
    aborting = asyncio.ensure_future(driver.abort_active(60))
    await until(lambda: len(driver.engine.recorder.calls_to("/abort_request")) >= 3, "three aborts")
    assert {call.body["rid"] for call in driver.engine.recorder.calls_to("/abort_request")} == {first.rid}
    await driver.engine.state.resume()
    assert await aborting == ([first.rid], [])
    await task
