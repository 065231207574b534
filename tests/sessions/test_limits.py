"""A session that grows without end, and all of them together: refusals that client libraries treat rightly, never a
crash, and nothing is lost of what was stored."""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.fake_sglang import FakeSGLang, Reply
from tests.support.chat import Held, ask, completion, follow
from tests.support.running import Running, running_sidecar

MIB = 2**20


def long_text(seed: int) -> str:
    """Text of about 3,000 tokens."""
    return random.Random(seed).randbytes(2400).hex()


async def turn(running: Running, session: str, body: dict[str, Any]) -> dict[str, Any]:
    """One turn; the body of the next."""
    running.engine.replies.append(Reply(text="Yes."))
    answer = completion(await running.chat(session, body)).choices[0].message.model_dump(exclude_none=True)
    return follow(body, answer, "Go on.")


async def test_a_session_that_is_full_is_refused_for_good_and_can_be_finalized(
    engine: FakeSGLang, tmp_path: Path
) -> None:
    bodies = [ask(long_text(index)) for index in range(9)]
    async with running_sidecar(engine, tmp_path / "state", max_session_bytes=MIB // 4) as running:
        at, response = -1, None
        while response is None or response.status_code == 200:
            at += 1
            response = await running.chat("s", bodies[at])
        assert 2 < at < len(bodies) - 1
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (413, "session_full")
        assert "--max-session-bytes" in error["message"]
        assert response.headers["x-should-retry"] == "false"
        await turn(running, "another", ask())
        asked = len(engine.requests)
        async with running.agent("s", max_retries=3) as agent:
            with pytest.raises(openai.APIStatusError) as refused:
                await agent.chat.completions.create(**ask())
        assert refused.value.status_code == 413
        assert len(engine.requests) == asked
        before = await running.view("s")
    async with running_sidecar(engine, tmp_path / "state", max_session_bytes=MIB // 4) as running:
        assert (await running.chat("s", bodies[-1])).status_code == 413, "a restart empties nothing"
        assert await running.view("s") == before
        assert (await running.finalize("s"))["num_steps"] == at


async def test_a_session_begins_so_many_conversations_and_goes_on_with_them(
    engine: FakeSGLang, tmp_path: Path
) -> None:
    async with running_sidecar(engine, tmp_path / "state", max_session_roots=2) as running:
        first = await turn(running, "s", ask("a"))
        await turn(running, "s", ask("b"))
        response = await running.chat("s", ask("c"))
        assert (response.status_code, response.json()["error"]["code"]) == (413, "session_full")
        assert "--max-session-roots" in response.json()["error"]["message"]
        await turn(running, "s", first)
        held = Held()
        engine.replies.append(held.reply())
        call = asyncio.ensure_future(running.chat("t", ask("a")))
        await held.reached(engine, len(engine.requests))
        await turn(running, "t", ask("b"))
        assert (await running.chat("t", ask("c"))).status_code == 413, "one that runs counts"
        held.open.set()
        assert (await call).status_code == 200


async def test_sessions_that_rest_leave_memory_for_others_and_go_on_token_exact(
    engine: FakeSGLang, tmp_path: Path
) -> None:
    names = [f"s{index}" for index in range(40)]
    async with running_sidecar(engine, tmp_path / "state", max_total_bytes=MIB) as running:
        registry = running.sidecar.registry
        bodies = {name: await turn(running, name, ask(long_text(index))) for index, name in enumerate(names)}
        for _ in range(2):
            for name in names:
                bodies[name] = await turn(running, name, bodies[name])
        await asyncio.sleep(0.25)  # the sum is as old as that
        await turn(running, "last", ask())
        loaded = list(registry._sessions._loaded.values())
        assert sum(session.size.held for session in loaded) <= MIB
        assert 5 < len(loaded) < len(names)
        for name in names:
            engine.assert_i1(session=name)
            [segment] = await running.segments(name)
            assert len(segment["extra_info"]["step_ids"]) == 3


async def test_when_all_of_them_run_a_call_is_told_to_come_back(
    engine: FakeSGLang, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.sessions.room._FRESH_SECONDS", 0)
    async with running_sidecar(engine, tmp_path / "state", max_total_bytes=MIB) as running:
        held: Held = Held()
        calls: list[asyncio.Future[httpx.Response]] = []
        for index in range(40):
            engine.replies.append(Reply(text="Yes."))
            first = await running.chat(f"s{index}", ask(long_text(index)))
            if first.status_code != 200:
                break
            answer = completion(first).choices[0].message.model_dump(exclude_none=True)
            engine.replies.append(held.reply())
            body, before = follow(ask(long_text(index)), answer, "Go on."), len(engine.requests)
            calls.append(asyncio.ensure_future(running.chat(f"s{index}", body)))
            await held.reached(engine, before)
        refused = first
        assert 5 < len(calls) < 40
        assert refused.status_code == 503, refused.text
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "memory_full"
        assert "--max-total-bytes" in refused.json()["error"]["message"]
        assert (await running.control.get("/ready")).status_code == 200
        held.open.set()
        engine.replies.clear()
        assert {response.status_code for response in await asyncio.gather(*calls)} == {200}
        await turn(running, "new", ask())


async def test_what_is_left_of_many_sessions_does_not_grow(engine: FakeSGLang, tmp_path: Path) -> None:
    """Finalized, discarded and given up by their agents: memory of the sidecar's own code after 24 and 72."""

    async def live(running: Running, first: int, count: int) -> int:
        for index in range(first, first + count):
            session = f"s{index}"
            body = await turn(running, session, ask(long_text(index)[:1600]))
            if index % 4 == 0:
                held = Held()
                engine.replies.append(held.reply())
                call = asyncio.ensure_future(running.chat(session, body))
                await held.reached(engine, -1)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
            path = "/session/discard" if index % 4 == 1 else "/session/finalize"
            await running.post(path, {"session_id": session})
            engine.reset()
        await asyncio.sleep(0.05)
        gc.collect()
        own = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/sidecar/*")])
        return sum(line.size for line in own.statistics("filename"))

    async with running_sidecar(engine, tmp_path / "state") as running:
        tracemalloc.start()
        try:
            before = await live(running, 0, 24)
            after = await live(running, 24, 48)
        finally:
            tracemalloc.stop()
        assert after - before < 64 * 1024, "a session holds 20 KB while it is open"
        assert not running.sidecar.registry._sessions
