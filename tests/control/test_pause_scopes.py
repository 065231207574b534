"""A pause of one session or one instance: it stops the calls of its scope, and tells their truth only."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.fake_sglang import FakeSGLang, RecordedRequest, Reply
from tests.support.chat import Held, ask, text_of, until_states
from tests.support.rollout import pause, resume, state
from tests.support.running import Running, engine_for, running_sidecar
from tests.support.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("resumed")]


class Calls:
    """One call per session at its hold."""

    def __init__(self, engine: FakeSGLang) -> None:
        self.engine = engine
        self.held: dict[str, Held] = {}
        self.tasks: dict[str, asyncio.Task[httpx.Response]] = {}

    async def begin(self, running: Running, session: str, instance: str | None = None) -> RecordedRequest:
        self.held[session] = Held(f"{session} one two three four five six")
        self.engine.script = lambda request: self.held[request.session or ""].reply()
        await running.open(session, **({"instance_id": instance} if instance else {}))
        self.tasks[session] = asyncio.ensure_future(running.chat(session, ask()))
        await self.engine.wait_until(lambda: self.engine.recorder.session(session))
        [request] = self.engine.recorder.session(session)
        await self.engine.wait_tokens(request, self.held[session].after)
        return request

    def release(self) -> None:
        for held in self.held.values():
            held.open.set()

    async def finish(self) -> None:
        """All replies are whole."""
        self.release()
        for session, task in self.tasks.items():
            assert text_of(await task) == self.held[session].text
            self.engine.assert_i1(session=session)


async def test_a_paused_session_stops_and_the_others_go_on(shared: Running) -> None:
    calls = Calls(shared.engine)
    first, other = await calls.begin(shared, "a"), await calls.begin(shared, "b")
    paused = await pause(shared, session_id="a")
    assert (paused["status"], paused["scope"], paused["quiesced"]) == ("paused", "session:a", True)
    assert (paused["active"], paused["suspended"]) == (0, 1)
    assert paused["preempted_request_ids"] == [first.rid]
    assert (first.outcome, other.outcome) == ("aborted", "running")
    now = await state(shared)
    assert (now["active"], now["suspended"]) == (1, 1)
    calls.release()
    assert text_of(await calls.tasks["b"]) == calls.held["b"].text
    assert not calls.tasks["a"].done()
    await resume(shared, pause_id=paused["pause_id"])
    await calls.finish()
    assert [len(shared.engine.recorder.session(name)) for name in "ab"] == [2, 1]


async def test_a_paused_instance_stops_all_its_sessions(shared: Running) -> None:
    calls = Calls(shared.engine)
    first, second = await calls.begin(shared, "i-1", "task"), await calls.begin(shared, "i-2", "task")
    other, without = await calls.begin(shared, "i-3", "task-2"), await calls.begin(shared, "i-4")
    paused = await pause(shared, instance_id="task")
    assert (paused["scope"], paused["active"], paused["suspended"]) == ("instance:task", 0, 2)
    assert sorted(paused["preempted_request_ids"]) == sorted([first.rid, second.rid])
    assert {other.outcome, without.outcome} == {"running"}
    await resume(shared)
    await calls.finish()


async def test_an_instance_named_by_the_agents_header_is_covered(shared: Running) -> None:
    await pause(shared, instance_id="by-header")
    call = asyncio.ensure_future(shared.chat("headed", ask(), X_Instance_Id="by-header"))
    await until_states(shared, "headed", "running")
    assert (await state(shared))["suspended"] == 1
    assert not shared.engine.requests
    shared.engine.replies.append(Reply(text="ok"))
    await resume(shared)
    assert text_of(await call) == "ok"


async def test_a_call_runs_when_no_pause_covers_it(shared: Running) -> None:
    calls = Calls(shared.engine)
    await calls.begin(shared, "c", "both")
    by_session = await pause(shared, session_id="c")
    by_instance = await pause(shared, instance_id="both")
    everything = await pause(shared)
    assert (by_instance["preempted_request_ids"], everything["preempted_request_ids"]) == ([], [])
    assert everything["suspended"] == 1
    assert {one["scope"] for one in (await state(shared))["pauses"]} == {"all", "session:c", "instance:both"}
    for pause_id in (everything["pause_id"], by_session["pause_id"]):
        reply = await resume(shared, pause_id=pause_id)
        assert (reply["paused"], reply["suspended"]) == (True, 1)
    assert len(shared.engine.requests) == 1
    assert (await resume(shared, pause_id=by_instance["pause_id"]))["paused"] is False
    await calls.finish()


async def test_each_scope_has_its_own_pause_renewed_and_in_conflict_by_itself(shared: Running) -> None:
    first = await pause(shared, session_id="d", mode="drain")
    other = await pause(shared, session_id="e")
    assert (other["status"], first["pause_id"] != other["pause_id"]) == ("paused", True)
    again = await pause(shared, session_id="d", mode="drain")
    assert (again["status"], again["pause_id"]) == ("already_paused", first["pause_id"])
    assert (await pause(shared, 409, session_id="d"))["error"]["code"] == "pause_conflict"
    renewed = await pause(shared, pause_id=first["pause_id"])  # a renewal keeps scope and mode
    assert (renewed["scope"], renewed["mode"]) == ("session:d", "drain")
    for wrong in ({"session_id": "e"}, {"instance_id": "d"}, {"mode": "abort"}):
        error = (await pause(shared, 409, pause_id=first["pause_id"], **wrong))["error"]
        assert error["code"] == "pause_conflict"
    assert (await pause(shared, 409, pause_id="unknown", session_id="f"))["error"]["code"] == "pause_expired"
    assert len((await state(shared))["pauses"]) == 2


async def test_a_paused_session_makes_the_sidecar_neither_paused_nor_unready(shared: Running) -> None:
    await pause(shared, session_id="g")
    ready = (await shared.control.get("/ready")).json()
    assert (ready["ready"], ready["paused"]) == (True, False)


async def test_a_paused_session_can_be_finalized_and_its_partial_reply_is_told(shared: Running) -> None:
    calls = Calls(shared.engine)
    request = await calls.begin(shared, "h")
    await pause(shared, session_id="h")
    reply = await shared.finalize("h", timeout_seconds=0.1)
    assert len(reply["aborted_step_ids"]) == 1
    assert (await calls.tasks["h"]).status_code == 409
    [segment] = await shared.segments("h")
    assert segment["tokens"] == request.input_ids + request.output_ids
    assert not any(segment["full_loss_mask"])
    now = await state(shared)
    assert (now["active"], now["suspended"]) == (0, 0)
    await resume(shared)
    calls.release()
    assert len(shared.engine.requests) == 1  # what is closed is never sent again


async def test_a_paused_session_can_be_discarded(shared: Running) -> None:
    calls = Calls(shared.engine)
    await calls.begin(shared, "j")
    await pause(shared, session_id="j")
    assert (await shared.post("/session/discard", {"session_id": "j"}))["session_removed"] is True
    assert (await calls.tasks["j"]).status_code == 409
    assert (await state(shared))["suspended"] == 0
    await resume(shared)
    assert len(shared.engine.requests) == 1


async def test_an_agent_that_leaves_a_paused_session_leaves_no_waiter(shared: Running) -> None:
    await pause(shared, session_id="k")
    call = asyncio.ensure_future(shared.chat("k", ask()))
    await until_states(shared, "k", "running")
    call.cancel()
    await until_states(shared, "k", "detached")

    async def nobody() -> bool:
        return (await state(shared))["suspended"] == 0

    await until(nobody, "no call held at the gate")
    await resume(shared)
    assert not shared.engine.requests


@pytest.mark.parametrize("mode", ["abort", "drain", "hold"])
async def test_pauses_of_all_scopes_and_modes_survive_a_restart(qwen3_dir: Path, tmp_path: Path, mode: str) -> None:
    async with engine_for(qwen3_dir) as engine:
        scopes = [{}] if mode == "hold" else [{}, {"session_id": "s"}, {"instance_id": "i"}]
        async with running_sidecar(engine, tmp_path / "state") as running:
            pauses = [await pause(running, mode=mode, **scope) for scope in scopes]
        async with running_sidecar(engine, tmp_path / "state") as running:
            kept = (await state(running))["pauses"]
            assert {(one["pause_id"], one["scope"], one["mode"]) for one in kept} == {
                (one["pause_id"], one["scope"], mode) for one in pauses
            }
            await running.open("s", instance_id="i")
            engine.replies.append(Reply(text="ok"))
            call = asyncio.ensure_future(running.chat("s", ask()))
            await until_states(running, "s", "running")
            for one in pauses:
                assert not engine.requests
                await resume(running, pause_id=one["pause_id"])
            assert text_of(await call) == "ok"
