"""Case 90 (mitmproxy issues 4469, 4470 and 4633): mitmproxy holds a response until it is complete unless it is told
to stream it, and has a limit for bodies.

Input: a stream, a failing late JSON reply and a large request and reply, all through the interceptor.
"""

from __future__ import annotations

import asyncio

import openai
import pytest

from tests.fake_sglang import Reply, faults
from tests.support.chat import Held, ask
from tests.support.intercepted import HOST, INTERCEPTED, agent_by, behind_proxy
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")
SETTINGS = {**INTERCEPTED, "heartbeat_interval": 0.05, "max_body": 1 << 20}
ENGINE = {"context_length": 1 << 20}


async def test_the_first_text_arrives_while_the_engine_still_generates(shared: Running) -> None:
    held = Held()
    shared.engine.replies.append(held.reply())
    text = ""
    async with agent_by("intercepted", shared, "case-90") as agent:
        async for chunk in await agent.chat.completions.create(**ask(), stream=True):
            text += chunk.choices[0].delta.content or ""
            if text and not held.open.is_set():
                assert not shared.engine.requests[0].done
                held.open.set()
    assert text == held.text


async def test_a_late_reply_that_fails_does_not_look_complete(shared: Running) -> None:
    held = Held(after=1)
    shared.engine.replies.append(held.reply(faults=faults.StreamError(4, "broke", 500)))
    async with agent_by("intercepted", shared, "case-90-late") as agent:
        call = asyncio.ensure_future(agent.chat.completions.create(**ask()))
        await held.reached(shared.engine)
        await asyncio.sleep(0.3)  # more than four heartbeats: white space has left
        held.open.set()
        with pytest.raises(openai.APIConnectionError):
            await call


async def test_a_large_call_passes_and_one_over_the_limit_is_a_413(shared: Running) -> None:
    shared.engine.replies.append(Reply(text="word " * 20_000))
    async with agent_by("intercepted", shared, "case-90-large") as agent:
        got = await agent.chat.completions.create(**ask("word " * 150_000))
        assert len(got.choices[0].message.content or "") > 99_000
    async with behind_proxy(shared, timeout=60) as client:
        url = f"{HOST}/v1/chat/completions"
        response = await client.post(url, json=ask("x" * (2 << 20)), headers={"X-Session-Id": "case-90-413"})
    assert response.status_code == 413
