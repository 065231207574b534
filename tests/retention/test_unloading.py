"""A session that nobody uses leaves memory, and goes on token-exact when its next call comes, whenever that is."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from sidecar.gateway.responses import StepResponse
from sidecar.sessions.admission import Admission
from sidecar.sessions.session import Session
from sidecar.store.protocol import StoreError
from tests.fake_sglang import Reply
from tests.retention.conftest import Sweeper, at_rest
from tests.support.chat import Held, ask, call_text, completion, follow, streaming, tool, until_states
from tests.support.running import Running
from tests.support.waiting import until


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def turn(running: Running, body: dict[str, Any], said: str = "Yes.", session: str = "s") -> dict[str, Any]:
    """One turn in which the engine says `said`; the body of the next."""
    running.engine.replies.append(Reply(text=said))
    answer = completion(await running.chat(session, body)).choices[0].message.model_dump(exclude_none=True)
    await at_rest(running, session)
    following = follow(body, answer, "Go on.")
    for made in answer.get("tool_calls", ()):
        following["messages"].insert(-1, {"role": "tool", "tool_call_id": made["id"], "content": "r"})
    return following


async def exact(running: Running, session: str = "s") -> None:
    """All requests of the session are one segment, every sampled token trains, and its ids are the engine's."""
    running.engine.assert_i1(session=session)
    [segment] = await running.segments(session)
    last = running.engine.requests[-1]
    assert segment["tokens"] == last.input_ids + last.output_ids
    sampled = [logprob for request in running.engine.requests for logprob in request.output_logprobs]
    pairs = zip(segment["full_logprobs"], segment["full_loss_mask"], strict=True)
    assert [logprob for logprob, trained in pairs if trained] == sampled
    assert segment["extra_info"]["untrainable"] == []


async def test_a_conversation_that_is_unloaded_after_every_turn_is_one_exact_segment(sweeper: Sweeper) -> None:
    running = sweeper.running
    body = ask(tools=[tool()])
    for said in ["<think>\nhm\n</think>\n\nOne 🎉.", call_text(at=1), "he" + "llo", "Done."]:
        body = await turn(running, body, said)
        assert sweeper.loaded == ["s"]
        await sweeper.pass_time(hours=1.1)
        assert sweeper.loaded == []
    assert sweeper.retention.totals.unloaded == 4
    await exact(running)


async def test_memory_is_free_at_once(sweeper: Sweeper, no_collections: None) -> None:
    await turn(sweeper.running, ask())
    gone = weakref.ref(sweeper.registry._sessions["s"])
    await sweeper.pass_time(hours=1.1)
    await until(lambda: gone() is None, "an end of the session's last reference")


async def test_one_that_is_used_stays(sweeper: Sweeper) -> None:
    body = await turn(sweeper.running, ask())
    await sweeper.pass_time(hours=0.9)
    await turn(sweeper.running, body)
    await sweeper.pass_time(hours=0.9)
    assert sweeper.loaded == ["s"]
    await sweeper.running.view("s")
    await sweeper.pass_time(hours=0.9)
    assert sweeper.loaded == ["s"]
    await sweeper.pass_time(hours=0.2)
    assert sweeper.loaded == []


async def test_an_opened_session_without_a_call_comes_back_with_its_pin(sweeper: Sweeper) -> None:
    await sweeper.running.open("s", sampling={"temperature": 0.5}, instance_id="i", metadata={"a": 1})
    await sweeper.pass_time(hours=1.1)
    assert sweeper.loaded == []
    await turn(sweeper.running, ask())
    assert sweeper.running.engine.requests[-1].sampling_params["temperature"] == 0.5
    assert (await sweeper.running.view("s"))["instance_id"] == "i"


async def test_a_step_that_runs_keeps_its_session(sweeper: Sweeper) -> None:
    held = Held()
    sweeper.running.engine.replies.append(held.reply())
    call = asyncio.create_task(sweeper.running.chat("s", ask()))
    await held.reached(sweeper.running.engine)
    await sweeper.pass_time(hours=5)
    assert sweeper.loaded == ["s"]
    held.open.set()
    completion(await call)
    await sweeper.pass_time(hours=0.9)
    assert sweeper.loaded == ["s"], "its time begins with the end of the step"


async def test_the_reply_of_a_recorded_step_keeps_its_session(
    sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay has no step that runs, but whether it was delivered is yet to be noted."""
    running, body = sweeper.running, ask()
    await turn(running, body)
    leaving, go_on, complete = asyncio.Event(), asyncio.Event(), StepResponse._complete

    async def slow(*arguments: Any) -> None:
        leaving.set()
        await go_on.wait()
        await complete(*arguments)

    monkeypatch.setattr(StepResponse, "_complete", slow)
    replay = asyncio.create_task(running.chat("s", body, x_stainless_retry_count="1"))
    await leaving.wait()
    await sweeper.pass_time(hours=5)
    assert sweeper.loaded == ["s"]
    go_on.set()
    completion(await replay)
    assert len(running.engine.requests) == 1
    await at_rest(running, "s")
    await sweeper.pass_time(hours=5)
    assert sweeper.loaded == []


async def test_a_detached_step_keeps_its_session_and_is_resumed_exactly(sweeper: Sweeper) -> None:
    running, held, body = sweeper.running, Held(), ask()
    running.engine.replies.append(held.reply())
    async with streaming(running, "s", body) as stream:
        await held.reached(running.engine)
        await stream.until_text()
    await until_states(running, "s", "detached")
    await sweeper.pass_time(hours=5)
    assert sweeper.loaded == ["s"]
    held.open.set()
    response = await running.chat("s", {**body, "stream": True}, x_stainless_retry_count="1")
    assert response.status_code == 200
    [segment] = await running.segments("s")
    trained = [token for token, one in zip(segment["tokens"], segment["full_loss_mask"], strict=True) if one]
    assert trained == [token for request in running.engine.requests for token in request.output_ids]


async def test_a_request_that_arrives_while_the_session_is_flushed_keeps_it(
    sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = await turn(sweeper.running, ask())
    before = sweeper.registry._sessions["s"]
    flushing, go_on, flush = asyncio.Event(), asyncio.Event(), Session.flush

    async def slow(session: Session) -> None:
        flushing.set()
        await flush(session)
        await go_on.wait()

    monkeypatch.setattr(Session, "flush", slow)
    sweep = asyncio.create_task(sweeper.pass_time(hours=1.1))
    await flushing.wait()
    await turn(sweeper.running, body)
    go_on.set()
    await sweep
    assert sweeper.registry._sessions["s"] is before
    await exact(sweeper.running)


@pytest.mark.parametrize("another", [False, True])
async def test_a_request_that_was_already_being_admitted_goes_on_with_the_same_session(
    sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch, another: bool
) -> None:
    running = sweeper.running
    body = await turn(running, ask())
    admitting, go_on, admit = asyncio.Event(), asyncio.Event(), Admission.admit

    async def slow(*arguments: Any) -> Any:
        admitting.set()
        await go_on.wait()
        return await admit(*arguments)

    monkeypatch.setattr(Admission, "admit", slow)
    call = asyncio.create_task(turn(running, body))
    await admitting.wait()
    await sweeper.pass_time(hours=1.1)
    assert sweeper.retention.totals.unloaded == 1
    if another:  # it finds the session that the first one holds
        admitting.clear()
        running.engine.replies.append(Reply(text="Side."))
        side = asyncio.create_task(running.chat("s", ask("Something else")))
        await admitting.wait()
    go_on.set()
    body = await call
    if another:
        completion(await side)
        running.engine.assert_i1(session="s", expected_roots=2)
        assert (await running.view("s"))["lineages"] == 2
        assert len(await running.segments("s")) == 2
    else:
        await turn(running, body)
        await exact(running)


async def test_what_runs_in_an_unloaded_session_is_ended_with_the_sidecar(sweeper: Sweeper) -> None:
    await turn(sweeper.running, ask())
    session = sweeper.registry._sessions["s"]
    await sweeper.pass_time(hours=1.1)
    assert sweeper.registry._sessions.values() == [session], "somebody holds it"


async def test_nothing_is_unloaded_that_could_not_be_stored(
    sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    await turn(sweeper.running, ask())

    async def fails(session: Session) -> None:
        raise StoreError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(Session, "flush", fails)
        await sweeper.pass_time(hours=2)
        assert sweeper.loaded == ["s"]
    with monkeypatch.context() as patch:
        patch.setattr(sweeper.store, "failure", lambda: "disk full")
        await sweeper.pass_time(hours=2)
        assert sweeper.loaded == ["s"]
    await sweeper.pass_time(hours=0)
    assert sweeper.loaded == []
