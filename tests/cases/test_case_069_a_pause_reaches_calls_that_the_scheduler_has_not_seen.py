"""Case 69: an abort has to return what was sampled and to reach calls that no scheduler has seen yet.

The gate closes first, so nothing new is sent; then what was sent is aborted; then all of it is waited for.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.fake_sglang import FakeSGLang, Reply, faults
from tests.support.chat import Held, ask, completion, until_states
from tests.support.running import running_sidecar
from tests.support.waiting import until


async def test_a_call_between_sidecar_and_scheduler_is_stopped(engine: FakeSGLang, tmp_path: Path) -> None:
    """An abort that comes before the scheduler has the call does nothing in SGLang, and no second one counts."""
    async with running_sidecar(engine, tmp_path / "state") as running:
        never = asyncio.Event()
        engine.replies.append(Reply(text="one two three", faults=faults.SlowStart(until=never)))
        call = asyncio.ensure_future(running.chat("s", ask()))
        await engine.wait_requests(1)
        paused = await running.post("/v1/rollout/pause", {"timeout_seconds": 20})
        assert (paused["quiesced"], paused["active"], paused["suspended"]) == (True, 0, 1)
        await running.post("/v1/rollout/resume")
        assert completion(await call).choices[0].message.content == "one two three"


async def test_a_call_in_the_waiting_queue_is_aborted_without_ids(engine: FakeSGLang, tmp_path: Path) -> None:
    async with running_sidecar(engine, tmp_path / "state") as running:
        engine.replies.append(Reply(text="one two three", queue=asyncio.Event()))
        call = asyncio.ensure_future(running.chat("s", ask()))
        [first] = await engine.wait_requests(1)
        paused = await running.post("/v1/rollout/pause")
        assert paused["preempted_request_ids"] == [first.rid]
        assert (first.outcome, first.output_ids) == ("aborted", [])
        await running.post("/v1/rollout/resume")
        assert completion(await call).choices[0].message.content == "one two three"
        assert engine.requests[1].input_ids == first.input_ids
        assert engine.requests[1].rid != first.rid


async def test_nothing_is_sent_after_the_gate_was_closed(engine: FakeSGLang, tmp_path: Path) -> None:
    async with running_sidecar(engine, tmp_path / "state") as running:
        held = Held()
        engine.replies.append(held.reply())
        first = asyncio.ensure_future(running.chat("s", ask()))
        request = await held.reached(engine)
        await engine.state.pause("in_place")  # so that the pause has something to wait for
        pausing = asyncio.ensure_future(running.post("/v1/rollout/pause"))
        await until(lambda: engine.recorder.calls_to("/abort_request"), "an abort")
        second = asyncio.ensure_future(running.chat("t", ask()))
        await until_states(running, "t", "running")
        assert engine.requests == [request]
        await engine.state.resume()
        paused = await pausing
        assert (paused["quiesced"], paused["suspended"]) == (True, 2)
        assert engine.requests == [request]
        engine.replies.append(Reply(text="ok"))
        await running.post("/v1/rollout/resume")
        assert completion(await first).choices[0].message.content == held.text
        assert completion(await second).choices[0].message.content == "ok"
