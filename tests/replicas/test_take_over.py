"""A session whose replica is gone goes on at another one, token-exact, within the waiting request."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.fake_sglang import FakeSGLang, Reply
from tests.replicas.pair import LEASE, replica
from tests.replicas.process import Process, process
from tests.support.chat import LIVENESS, Held, ask, follow, until_states
from tests.support.running import Running
from tests.support.waiting import until


async def turn(
    engine: FakeSGLang, replica: Running | Process, session: str, body: dict[str, Any], said: str, **options: Any
) -> dict[str, Any]:
    """One turn through the SDK, in which the engine says `said`; the body of the next."""
    engine.replies.append(Reply(text=said))
    async with replica.agent(session, timeout=LIVENESS, **options) as agent:
        answer = (await agent.chat.completions.create(**body)).choices[0].message
    assert answer.content == said
    return follow(body, answer.model_dump(exclude_none=True), "On.")


def as_if_killed(store_url: str, sidecar_id: str) -> None:
    """What a sidecar leaves in the store that does not end in order, with a long lease."""
    with closing(sqlite3.connect(store_url.removeprefix("sqlite:///"))) as connection, connection:
        lease = (sidecar_id, "http://127.0.0.1:9", "http://127.0.0.1:9", time.time() + 600)
        connection.execute("INSERT INTO lease VALUES (?, ?, ?, ?)", lease)
        connection.execute("UPDATE session SET owner = ?", (sidecar_id,))


async def test_after_kill_9_sessions_go_on_at_the_other_replica_within_the_waiting_request(
    engine: FakeSGLang, tmp_path: Path, store_url: str
) -> None:
    async with (
        process(engine, tmp_path / "a", store_url) as first,
        replica(engine, tmp_path / "b", store_url) as second,
    ):
        talk = await turn(engine, first, "talk", ask(), "One 🎉.")
        talk = await turn(engine, second, "talk", talk, "Two.")
        waits = await turn(engine, first, "waits", ask("Wait."), "One.")
        engine.continue_aborted = False
        engine.replies.append(Reply(text="never", queue=asyncio.Event()))
        async with second.agent("waits", max_retries=0, timeout=LIVENESS) as agent:
            call = asyncio.ensure_future(agent.chat.completions.create(**waits))
            lost = (await engine.wait_requests(4))[-1]
            engine.replies.append(Reply(text="Two."))
            await first.kill()
            # a call that waits for the replica that is killed
            assert (await call).choices[0].message.content == "Two."
        await engine.wait_until(lambda: lost.done)
        talk = await turn(engine, second, "talk", talk, "Three.", max_retries=0)
        for session, turns in (("talk", 3), ("waits", 2)):
            asked = [request for request in engine.recorder.session(session) if request is not lost]
            assert len(asked) == turns
            engine.recorder.assert_token_exact(asked)
            assert (await second.finalize(session))["num_steps"] == turns
            [segment] = await second.segments(session)
            assert segment["tokens"] == asked[-1].input_ids + asked[-1].output_ids
        # the lock of a process that was killed is free, and says who it was
        async with replica(engine, tmp_path / "a", store_url) as again:
            assert again.sidecar.members.predecessor == first.sidecar_id


async def test_a_stopped_replica_that_wakes_first_cannot_commit_and_the_rightful_one_can(
    engine: FakeSGLang, tmp_path: Path, store_url: str
) -> None:
    async with (
        process(engine, tmp_path / "a", store_url) as stale,
        replica(engine, tmp_path / "b", store_url) as rightful,
    ):
        body = await turn(engine, stale, "s", ask(), "One.")
        late, mine, streamed = Held(), Held(), Held()
        engine.replies.extend([late.reply(), streamed.reply(), mine.reply()])
        async with (
            stale.agent("s", max_retries=0, timeout=LIVENESS) as old_agent,
            rightful.agent("streamed", max_retries=0, timeout=LIVENESS) as stream_agent,
        ):
            await stale.open("streamed")
            old = asyncio.ensure_future(old_agent.chat.completions.create(**body))
            await late.reached(engine, 1)
            stream = await stream_agent.chat.completions.create(**ask(stream=True))
            await anext(stream)
            stale.signal(signal.SIGSTOP)
            async with rightful.agent("s", max_retries=0, timeout=LIVENESS) as agent:
                with pytest.raises(openai.APIError) as cut:
                    async for _ in stream:
                        pass
                assert cut.value.code == "replica_lost"
                new = asyncio.ensure_future(agent.chat.completions.create(**body))
                await mine.reached(engine, 3)  # the lease is over, the session taken, a step under way
                late.open.set()
                stale.signal(signal.SIGCONT)  # it wakes first, and has a whole reply
                with pytest.raises(openai.InternalServerError) as refused:
                    await old
                assert refused.value.status_code == 503
                assert refused.value.response.headers["retry-after"] == "1"
                assert refused.value.code == "session_moved"
                mine.open.set()
                assert (await new).choices[0].message.content == mine.text
            engine.replies.append(Reply(text="Three."))
            following = follow(body, {"role": "assistant", "content": mine.text}, "On.")
            third = await old_agent.chat.completions.create(**following)  # through the one that lost it
            assert third.choices[0].message.content == "Three."
        states = [step["state"] for step in (await rightful.view("s"))["steps"]]
        assert states == ["committed"] * 3
        one, _, two, three = engine.recorder.session("s")
        engine.recorder.assert_token_exact([one, two, three])
        [segment] = await rightful.segments("s")
        assert segment["tokens"] == three.input_ids + three.output_ids


async def test_a_restart_on_the_same_state_directory_waits_for_no_lease(
    engine: FakeSGLang, tmp_path: Path, store_url: str
) -> None:
    """Its last sidecar was killed: the lease is in the store still, and the lock is free."""
    async with replica(engine, tmp_path / "a", store_url, lease_seconds=600) as killed:
        body = await turn(engine, killed, "s", ask(), "One.")
    as_if_killed(store_url, killed.sidecar.members.claims.sidecar_id)
    async with (
        replica(engine, tmp_path / "b", store_url) as other,
        replica(engine, tmp_path / "a", store_url) as again,
    ):
        async with asyncio.timeout(LIVENESS):
            body = await turn(engine, again, "s", body, "Two.", max_retries=0)
            await turn(engine, other, "s", body, "Three.", max_retries=0)
        engine.assert_i1(session="s")


async def test_a_sidecar_that_ends_in_order_leaves_its_sessions_to_the_other_one_at_once(
    engine: FakeSGLang, tmp_path: Path, store_url: str
) -> None:
    async with replica(engine, tmp_path / "b", store_url, lease_seconds=600) as second:
        async with replica(engine, tmp_path / "a", store_url, lease_seconds=600) as first:
            body = await turn(engine, first, "s", ask(), "One.")
        async with asyncio.timeout(LIVENESS):
            await turn(engine, second, "s", body, "Two.", max_retries=0)
        [one, _] = (await second.view("s"))["steps"]
        assert one["delivered"]
        assert [lease.sidecar_id for lease in await second.sidecar.members.claims.live()] == [
            second.sidecar.members.claims.sidecar_id
        ]


async def test_a_call_waits_for_a_replica_that_is_ending_in_order(
    engine: FakeSGLang, tmp_path: Path, store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With this lease nothing but the release at its end can help."""
    held = Held()
    async with replica(engine, tmp_path / "b", store_url, lease_seconds=600) as second:
        async with replica(engine, tmp_path / "a", store_url, lease_seconds=600, drain_seconds=30) as first:
            body = await turn(engine, first, "s", ask(), "One.")
            engine.replies.append(held.reply())
            running = asyncio.ensure_future(first.chat("other", ask()))
            await held.reached(engine, 1)
            stopping = asyncio.ensure_future(first.sidecar.registry.stop(30))
            call = asyncio.ensure_future(turn(engine, second, "s", body, "Two.", max_retries=0))
            await until(lambda: "shutting_down" in caplog.text, "a refusal of the replica that ends")
            held.open.set()
            await asyncio.gather(running, stopping)
        await call
        engine.assert_i1(session="s")


async def test_a_replica_that_does_not_answer_is_waited_for_within_bounds(
    engine: FakeSGLang, tmp_path: Path, store_url: str
) -> None:
    async with (
        replica(engine, tmp_path / "a", store_url) as owner,
        replica(engine, tmp_path / "b", store_url) as other,
    ):
        await owner.open("s")
        await owner.sidecar.gateway.stop()  # it lives and renews its lease, but cannot be reached
        other.sidecar.members.forwarding.patience = LEASE / 2
        refused = await other.chat("s", ask())
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "replica_unreachable"
        assert not engine.requests
        assert (await until_states(owner, "s"))["state"] == "open"
