"""Replicas on a real PostgreSQL."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.fake_sglang import FakeSGLang, Reply
from tests.replicas.pair import pair
from tests.support.chat import LIVENESS, Held, ask, follow
from tests.support.postgres import Postgres
from tests.support.waiting import until


async def test_a_conversation_over_two_replicas_outlives_a_restart_of_the_server(
    engine: FakeSGLang, tmp_path: Path, postgres: Postgres, postgres_url: str
) -> None:
    async with pair(engine, tmp_path, postgres_url, lease_seconds=3) as replicas:
        body = ask()
        for turn in range(4):
            running = replicas[turn % 2]
            held = Held()
            engine.replies.append(held.reply())
            async with running.agent("s", max_retries=3, timeout=LIVENESS) as agent:
                call = asyncio.ensure_future(agent.chat.completions.create(**body))
                await held.reached(engine, turn)
                if turn == 1:  # the server goes away while the engine works, and is back when it is done
                    postgres.stop()
                    held.open.set()
                    await asyncio.to_thread(postgres.start)
                held.open.set()
                answer = (await call).choices[0].message
            body = follow(body, answer.model_dump(exclude_none=True), "On.")
        engine.assert_i1(session="s")
        finalized = await replicas[1].finalize("s")
        assert finalized["num_steps"] == finalized["num_turns"] == 4
        [segment] = await replicas[0].segments("s")
        last = engine.requests[-1]
        assert segment["tokens"] == last.input_ids + last.output_ids


async def test_a_server_that_is_away_for_longer_than_the_lease_loses_no_session(
    engine: FakeSGLang, tmp_path: Path, postgres: Postgres, postgres_url: str
) -> None:
    async with pair(engine, tmp_path, postgres_url) as (owner, other):
        engine.replies.extend([Reply(text="One."), Reply(text="Two."), Reply(text="Three.")])
        async with owner.agent("s", timeout=LIVENESS) as agent:
            answer = (await agent.chat.completions.create(**ask())).choices[0].message
            body = follow(ask(), answer.model_dump(exclude_none=True), "On.")
        lease = owner.sidecar.members.lease
        postgres.stop()
        await until(lambda: not lease.valid, "an end of the lease")
        ready = await owner.control.get("/ready")
        assert ready.status_code == 503
        await asyncio.to_thread(postgres.start)
        for running in (other, owner):
            async with running.agent("s", max_retries=8, timeout=LIVENESS) as agent:
                answer = (await agent.chat.completions.create(**body)).choices[0].message
                body = follow(body, answer.model_dump(exclude_none=True), "On.")
        engine.assert_i1(session="s")
        assert (await other.finalize("s"))["num_steps"] == 3
