"""Closing a session: finalize with what is in flight, anchors and rewards; discard."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import Held, ask, completion, streaming, turns, until_states
from tests.support.running import Running
from tests.support.waiting import LIVENESS, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def until_closing(running: Running, session: str) -> None:
    """Until a finalize under way refuses what is new."""

    async def closing() -> bool:
        return (await running.control.post("/session/open", json={"session_id": session})).status_code == 409

    await until(closing, f"{session} refuses to be opened")


# Finalize.


async def test_finalizing_counts_steps_turns_and_segments_and_closes(shared: Running) -> None:
    await shared.open("counted", instance_id="i-1")
    await turns(shared, "counted", "One.", "Two.")
    shared.engine.replies.append(Reply(text="A title"))
    completion(await shared.chat("counted", ask("Title?")))
    reply = await shared.finalize("counted", label="good", reward=1.5)
    assert reply.pop("finalization_id")
    assert reply == {
        "success": True,
        "aborted_step_ids": [],
        "session_id": "counted",
        "trajectory_id": "counted",
        "instance_id": "i-1",
        "num_steps": 3,
        "num_turns": 2,
        "num_segments": 2,
        "history_rewritten": False,
        "token_build_mode": "tito",
    }
    assert (await shared.view("counted"))["state"] == "finalized"
    assert (await shared.chat("counted", ask())).status_code == 409


async def test_a_repeated_finalize_gets_the_first_reply_whatever_it_says(shared: Running) -> None:
    await turns(shared, "repeated", "One.")
    first = await shared.finalize("repeated", reward=1.0)
    assert await shared.finalize("repeated", reward=0.0, label="x", anchor_step_id="nonsense") == first
    [segment] = await shared.segments("repeated")
    assert (segment["reward"], segment["label"]) == (1.0, None)


async def test_two_finalizes_at_once_get_the_same_reply(shared: Running) -> None:
    await turns(shared, "at-once", "One.")
    first, second = await asyncio.gather(shared.finalize("at-once"), shared.finalize("at-once"))
    assert first == second


async def test_finalizing_what_is_not_there_is_404_and_without_steps_400(shared: Running) -> None:
    error = (await shared.post("/session/finalize", {"session_id": "never"}, status=404))["error"]
    assert error["code"] == "session_not_found"
    await shared.open("stepless")
    error = (await shared.post("/session/finalize", {"session_id": "stepless"}, status=400))["error"]
    assert error["code"] == "no_steps"
    await turns(shared, "stepless", "One.")  # and it stayed open
    assert (await shared.finalize("stepless"))["num_steps"] == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reward": "x"}, "reward"),
        ({"reward": True}, "reward"),
        ({"reward": {"a": "x"}}, "reward"),
        ({"timeout_seconds": -1}, "timeout_seconds"),
        ({"timeout_seconds": "1"}, "timeout_seconds"),
        ({"instance_id": 1}, "instance_id"),
        ({"anchor_step_id": 1}, "anchor_step_id"),
        ({"anchor_step_id": "nonsense"}, "anchor_step_id"),
        ({"timeout": 1}, "timeout"),
    ],
)
async def test_bad_fields_of_finalize_are_named_and_leave_it_open(
    shared: Running, fields: dict[str, Any], param: str
) -> None:
    session = f"bad-finalize-{fields}"
    await turns(shared, session, "One.")
    body = {"session_id": session, **fields}
    assert (await shared.post("/session/finalize", body, status=400))["error"]["param"] == param
    assert (await shared.view(session))["state"] == "open"
    await turns(shared, session, "Two.")


@pytest.mark.parametrize("stream", [False, True])
async def test_finalize_waits_for_a_call_in_flight_whose_reply_counts(shared: Running, stream: bool) -> None:
    held, session = Held(), f"awaited-{stream}"
    shared.engine.replies.append(held.reply())
    call = asyncio.ensure_future(shared.chat(session, ask(stream=stream)))
    await held.reached(shared.engine)
    finalizing = asyncio.ensure_future(shared.finalize(session))
    await until_closing(shared, session)
    assert (await shared.chat(session, ask("Another"))).status_code == 409
    assert not finalizing.done()
    held.open.set()
    assert (await call).status_code == 200
    reply = await finalizing
    assert (reply["num_steps"], reply["num_turns"], reply["aborted_step_ids"]) == (1, 1, [])
    [segment] = await shared.segments(session)
    assert sum(segment["full_loss_mask"]) == len(shared.engine.requests[0].output_ids)


@pytest.mark.parametrize("stream", [False, True])
async def test_finalize_aborts_what_takes_too_long_and_lists_it(shared: Running, stream: bool) -> None:
    session, held = f"late-{stream}", Held()
    await turns(shared, session, "One.")
    shared.engine.replies.append(held.reply())
    async with streaming(shared, session, ask("More")) as agent:
        request = await held.reached(shared.engine, 1)
        [_, running] = (await shared.view(session))["steps"]
        reply = await shared.finalize(session, timeout_seconds=0.05)
        assert reply["aborted_step_ids"] == [running["step_id"]]
        assert reply["num_steps"] == 1
        assert request.outcome == "disconnected"
        events = await agent.rest()
    assert events[-1]["error"]["code"] == "step_aborted"
    [_, aborted] = (await shared.view(session))["steps"]
    assert (aborted["state"], aborted["output_tokens"]) == ("aborted", held.after)
    segments = await shared.segments(session)
    assert {"step_id": running["step_id"], "reason": "aborted"} in segments[-1]["extra_info"]["untrainable"]


async def test_a_call_that_finalize_aborts_is_409_without_retry(shared: Running) -> None:
    held = Held()
    await turns(shared, "aborted-call", "One.")
    shared.engine.replies.append(held.reply())
    call = asyncio.ensure_future(shared.chat("aborted-call", ask("More")))
    await held.reached(shared.engine, 1)
    await shared.finalize("aborted-call", timeout_seconds=0)
    response = await call
    assert response.status_code == 409
    assert response.headers["x-should-retry"] == "false"
    assert response.json()["error"]["code"] == "step_aborted"


async def test_finalize_does_not_wait_for_a_step_that_waits_for_its_retry(shared: Running) -> None:
    await turns(shared, "detached", "One.")
    held = Held()
    shared.engine.replies.append(held.reply())
    call = asyncio.ensure_future(shared.chat("detached", ask("More")))
    await held.reached(shared.engine, 1)
    call.cancel()
    view = await until_states(shared, "detached", "committed", "detached")
    reply = await shared.finalize("detached", timeout_seconds=60)
    assert reply["aborted_step_ids"] == [view["steps"][1]["step_id"]]


async def test_a_step_whose_agent_leaves_while_finalize_waits_is_not_waited_for(shared: Running) -> None:
    await turns(shared, "leaving", "One.")
    held = Held()
    shared.engine.replies.append(held.reply())
    call = asyncio.ensure_future(shared.chat("leaving", ask("More")))
    await held.reached(shared.engine, 1)
    [_, running] = (await shared.view("leaving"))["steps"]
    finalizing = asyncio.ensure_future(shared.finalize("leaving", timeout_seconds=3600))
    await until_closing(shared, "leaving")
    call.cancel()  # its retry would be refused, so that nobody can come back
    async with asyncio.timeout(LIVENESS):
        reply = await finalizing
    assert (reply["num_steps"], reply["aborted_step_ids"]) == (1, [running["step_id"]])


async def test_an_opening_while_finalize_waits_is_409_finalized(shared: Running) -> None:
    held = Held()
    shared.engine.replies.append(held.reply())
    call = asyncio.ensure_future(shared.chat("closing", ask()))
    await held.reached(shared.engine)
    finalizing = asyncio.ensure_future(shared.finalize("closing"))
    await until_closing(shared, "closing")
    error = (await shared.post("/session/open", {"session_id": "closing"}, status=409))["error"]
    assert error["code"] == "session_finalized"
    held.open.set()
    await asyncio.gather(call, finalizing)


async def test_the_reward_goes_to_the_anchor_and_the_anchor_can_be_named(shared: Running) -> None:
    await turns(shared, "anchored", "One.", "Two.")
    shared.engine.replies.append(Reply(text="A title"))
    side = await shared.chat("anchored", ask("Title?"))
    await shared.finalize("anchored", reward={"score": 2, "style": 0.5}, anchor_step_id=side.headers["x-step-id"])
    segments = await shared.segments("anchored")
    assert [segment["reward"] for segment in segments] == [None, {"score": 2, "style": 0.5}]
    assert segments[-1]["extra_info"]["step_ids"] == [side.headers["x-step-id"]]
    assert [segment["extra_info"]["is_anchor"] for segment in segments] == [False, True]


# Discard.


async def test_discarding_removes_and_is_idempotent(shared: Running) -> None:
    await turns(shared, "discarded", "One.")
    assert await shared.post("/session/discard", {"session_id": "discarded"}) == {
        "success": True,
        "session_removed": True,
        "segments_removed": 1,
    }
    nothing = {"success": True, "session_removed": False, "segments_removed": 0}
    for session in ("discarded", "never-was"):
        assert await shared.post("/session/discard", {"session_id": session}) == nothing
    view = await shared.view("discarded")
    assert (view["state"], view["steps"]) == ("discarded", [])
    for path in ("/session/finalize", "/session/open", "/trajectory/read"):
        error = (await shared.post(path, {"session_id": "discarded"}, status=409))["error"]
        assert error["message"], path


async def test_a_finalized_session_can_be_discarded_and_is_not_read_any_more(shared: Running) -> None:
    await turns(shared, "both", "One.")
    await shared.finalize("both")
    assert (await shared.post("/session/discard", {"session_id": "both"}))["segments_removed"] == 1
    error = (await shared.post("/trajectory/read", {"session_id": "both"}, status=409))["error"]
    assert error["code"] == "session_discarded"


@pytest.mark.parametrize("stream", [False, True])
async def test_discarding_aborts_calls_in_flight_which_are_never_sent_again(shared: Running, stream: bool) -> None:
    held = Held()
    shared.engine.replies.append(held.reply())
    session = f"discarded-{stream}"
    call = asyncio.ensure_future(shared.chat(session, ask(stream=stream)))
    request = await held.reached(shared.engine)
    await shared.post("/session/discard", {"session_id": session})
    assert request.outcome == "disconnected"
    response = await call
    assert "step_aborted" in response.text
    assert len(shared.engine.requests) == 1
    assert (await shared.view(session))["steps"] == []


@pytest.mark.parametrize("stream", [False, True])
async def test_discarding_a_call_that_a_pause_holds_leaves_nothing_to_send_again(
    shared: Running, stream: bool
) -> None:
    """A trainer ends a rollout by aborting until its servers are idle: what came back would hang it."""
    held = Held()
    shared.engine.replies.append(held.reply())
    session = f"discarded-at-the-gate-{stream}"
    call = asyncio.ensure_future(shared.chat(session, ask(stream=stream)))
    await held.reached(shared.engine)
    paused = await shared.post("/v1/rollout/pause", {})
    await until(lambda: shared.sidecar.pauses.gate.suspended == 1, "the call at the gate")
    await shared.post("/session/discard", {"session_id": session})
    assert "step_aborted" in (await call).text
    assert shared.sidecar.pauses.gate.suspended == 0
    await shared.post("/v1/rollout/resume", {"pause_id": paused["pause_id"]})
    shared.engine.replies.append(Reply(text="another session's"))
    completion(await shared.chat(f"after-{stream}", ask()))  # the loop has turned: whoever waited would have sent
    assert [request.session for request in shared.engine.requests] == [session, f"after-{stream}"]
