"""What becomes of calls that run: aborted, waited for, or left to the engine's own pause."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.fake_sglang import Reply
from tests.support.chat import Held, ask, text_of, until_states
from tests.support.rollout import pause, resume, state
from tests.support.running import Running, engine_for, running_sidecar
from tests.support.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("resumed")]
ENGINE = {"weight_version": "1"}


async def paused_now(running: Running) -> None:
    async def reached() -> bool:
        return bool((await state(running))["paused"])

    await until(reached, "the gate is closed")


# drain


async def test_drain_waits_for_natural_ends_and_aborts_nothing(shared: Running) -> None:
    held = Held()
    shared.engine.replies.append(held.reply())
    call = asyncio.ensure_future(shared.chat("drain", ask()))
    await held.reached(shared.engine)
    pausing = asyncio.ensure_future(pause(shared, mode="drain"))
    await paused_now(shared)
    late = asyncio.ensure_future(shared.chat("late", ask()))
    await until_states(shared, "late", "running")
    assert not pausing.done()
    held.open.set()
    paused = await pausing
    assert (paused["mode"], paused["quiesced"], paused["active"], paused["suspended"]) == ("drain", True, 0, 1)
    assert (paused["preempted_request_ids"], paused["running_request_ids"]) == ([], [])
    assert text_of(await call) == held.text
    [request] = shared.engine.requests
    assert request.outcome == "finished"
    assert not shared.engine.recorder.calls_to("/abort_request")
    shared.engine.replies.append(Reply(text="ok"))
    await resume(shared, pause_id=paused["pause_id"])
    assert text_of(await late) == "ok"


async def test_a_drain_that_takes_too_long_says_what_still_runs(shared: Running) -> None:
    held = Held()
    shared.engine.replies.append(held.reply())
    call = asyncio.ensure_future(shared.chat("too-long", ask()))
    request = await held.reached(shared.engine)
    paused = await pause(shared, mode="drain", timeout_seconds=0.05)
    assert (paused["status"], paused["quiesced"], paused["active"]) == ("paused", False, 1)
    assert paused["running_request_ids"] == [request.rid]
    assert (paused["preempted_request_ids"], paused["abort_failed_request_ids"]) == ([], [])
    again = asyncio.ensure_future(pause(shared, mode="drain"))
    held.open.set()
    assert ((await again)["status"], (await again)["quiesced"]) == ("already_paused", True)
    assert request.outcome == "finished"
    await resume(shared)
    assert text_of(await call) == held.text


async def test_a_call_that_the_engine_ends_while_draining_waits_for_the_resume(shared: Running) -> None:
    held = Held()
    shared.engine.replies.append(held.reply())
    call = asyncio.ensure_future(shared.chat("drain-cut", ask()))
    await held.reached(shared.engine)
    pausing = asyncio.ensure_future(pause(shared, mode="drain"))
    await paused_now(shared)
    shared.engine.state.abort(abort_all=True)  # not ours: a weight update
    paused = await pausing
    assert (paused["quiesced"], paused["suspended"]) == (True, 1)
    assert len(shared.engine.requests) == 1
    await resume(shared)
    assert text_of(await call) == held.text


async def test_the_lease_begins_when_the_drain_is_over(shared: Running) -> None:
    held = Held()
    shared.engine.replies.append(held.reply())
    call = asyncio.ensure_future(shared.chat("long-drain", ask()))
    await held.reached(shared.engine)
    pausing = asyncio.ensure_future(pause(shared, mode="drain", lease_seconds=0.2))
    await paused_now(shared)
    await asyncio.sleep(0.4)  # beyond the lease
    assert (await state(shared))["paused"]
    held.open.set()
    assert (await pausing)["quiesced"]
    assert text_of(await call) == held.text

    async def over() -> bool:
        return not (await state(shared))["paused"]

    await until(over, "the lease has run out")


@pytest.mark.parametrize("mode", ["abort", "drain"])
async def test_a_pause_that_is_lifted_while_it_waits_is_no_pause(shared: Running, mode: str) -> None:
    held = Held()
    shared.engine.replies.append(held.reply())
    call = asyncio.ensure_future(shared.chat(f"lifted-{mode}", ask()))
    await held.reached(shared.engine)
    if mode == "abort":  # an engine that stands still keeps the call, so that the pause has to wait
        await shared.engine.state.pause("in_place")
    pausing = asyncio.ensure_future(pause(shared, 409, mode=mode))
    await paused_now(shared)
    await resume(shared)
    assert (await pausing)["error"]["code"] == "pause_expired"
    assert not (await state(shared))["paused"]
    await shared.engine.state.resume()
    held.open.set()
    assert text_of(await call) == held.text


# hold


@pytest.mark.parametrize("engine_mode", ["retract", "in_place"])
async def test_hold_leaves_running_calls_to_the_engines_own_pause(shared: Running, engine_mode: str) -> None:
    held = Held()
    shared.engine.set_weight_version("1")
    shared.engine.replies.append(held.reply())
    session = f"hold-{engine_mode}"
    call = asyncio.ensure_future(shared.chat(session, ask()))
    request = await held.reached(shared.engine)
    paused = await pause(shared, mode="hold")
    assert (paused["status"], paused["mode"], paused["quiesced"]) == ("paused", "hold", False)
    assert (paused["active"], paused["running_request_ids"]) == (1, [request.rid])
    async with httpx.AsyncClient(base_url=shared.engine.url, timeout=30) as client:
        assert (await client.post("/pause_generation", json={"mode": engine_mode})).status_code == 200
        held.open.set()
        late = asyncio.ensure_future(shared.chat(f"{session}-late", ask()))
        await until_states(shared, f"{session}-late", "running")
        shared.engine.set_weight_version("2")
        assert (await state(shared))["active"] == 1
        assert (await client.post("/continue_generation", json={})).status_code == 200
    assert text_of(await call) == held.text  # it went on before the resume
    assert shared.engine.requests == [request]
    assert request.outcome == "finished"
    shared.engine.replies.append(Reply(text="ok"))
    resumed = await resume(shared, pause_id=paused["pause_id"], version="2")
    assert resumed["version"] == "2"
    assert text_of(await late) == "ok"
    [segment] = await shared.segments(session)
    versions = segment["full_versions"][len(request.input_ids) :]
    assert versions[:3] == ["1"] * 3
    assert set(versions[4:]) == {"2"}


async def test_hold_with_nothing_in_flight_is_quiet(shared: Running) -> None:
    paused = await pause(shared, mode="hold")
    assert (paused["quiesced"], paused["active"]) == (True, 0)
    assert (await pause(shared, mode="hold"))["status"] == "already_paused"


async def test_hold_is_refused_where_versions_would_be_unknown(qwen3_dir: Path, tmp_path: Path) -> None:
    async with (
        engine_for(qwen3_dir, version_spans=False) as engine,
        running_sidecar(engine, tmp_path / "state") as running,
    ):
        error = (await pause(running, 400, mode="hold"))["error"]
        assert (error["code"], error["param"]) == ("hold_unsupported", "mode")
        assert "says version 0.5.18" in error["message"]
        assert not (await state(running))["paused"]
        await pause(running, mode="abort")
        assert (await pause(running, 409, mode="hold"))["error"]["code"] == "pause_conflict"


async def test_hold_is_refused_while_nobody_can_say(qwen3_dir: Path, tmp_path: Path) -> None:
    async with engine_for(qwen3_dir) as engine, running_sidecar(engine, tmp_path / "state") as running:
        await engine.down()
        assert (await pause(running, 400, mode="hold"))["error"]["code"] == "hold_unsupported"
        assert not (await state(running))["paused"]
