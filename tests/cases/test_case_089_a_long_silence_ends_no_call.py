"""Case 89 (CopilotKit issue 6980, maximhq/bifrost issue 5010 and others): a stream that says nothing is cut by
clients and middleboxes after 30 to 120 seconds.

Input: calls that wait much longer than their client's read timeout, at a pause and in the engine's queue; directly
and through the interceptor. Comments (in a stream) and white space (before JSON) keep them alive.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.fake_sglang import Reply, faults
from tests.support.chat import Held, ask, joined, streaming, until_states
from tests.support.intercepted import INTERCEPTED, agent_by
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")
SETTINGS = {**INTERCEPTED, "heartbeat_interval": 0.1}
PATIENCE = 1.0
"""The client's read timeout: ten heartbeats, so that a busy machine does not matter."""
SILENCE = 3.0
WAYS = pytest.mark.parametrize("way", ["direct", "intercepted"])
BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@WAYS
@BOTH_WAYS
async def test_a_call_that_is_paused_for_long_is_one_slow_call(shared: Running, way: str, stream: bool) -> None:
    session = f"case-89-paused-{way}-{stream}"
    shared.engine.replies.append(Reply(text="at last"))
    paused = await shared.post("/v1/rollout/pause")
    async with agent_by(way, shared, session, timeout=PATIENCE) as agent:
        call = asyncio.ensure_future(text_of(agent.chat.completions.create(**ask(), stream=stream)))
        await until_states(shared, session, "running")
        await asyncio.sleep(SILENCE)  # the silence is what is tested
        assert not call.done()
        await shared.post("/v1/rollout/resume", {"pause_id": paused["pause_id"]})
        assert await call == "at last"
    [step] = (await shared.view(session))["steps"]
    assert step["delivered"]
    assert len(shared.engine.requests) == 1


@WAYS
@BOTH_WAYS
async def test_a_call_that_stops_in_the_middle_for_long_is_one_slow_call(
    shared: Running, way: str, stream: bool
) -> None:
    session, held = f"case-89-stuck-{way}-{stream}", Held()
    shared.engine.replies.append(held.reply())
    async with agent_by(way, shared, session, timeout=PATIENCE) as agent:
        call = asyncio.ensure_future(text_of(agent.chat.completions.create(**ask(), stream=stream)))
        await held.reached(shared.engine)
        await asyncio.sleep(SILENCE)
        assert not call.done()
        held.open.set()
        assert await call == held.text
    assert len(shared.engine.requests) == 1


async def test_proxies_are_told_not_to_buffer_and_the_silence_is_filled_with_comments(shared: Running) -> None:
    queued = asyncio.Event()
    shared.engine.replies.append(Reply(text="late", queue=queued))
    began = time.monotonic()
    async with streaming(shared, "case-89-comments", ask()) as stream:
        assert stream.response.headers["x-accel-buffering"] == "no"
        assert stream.response.headers["cache-control"] == "no-store"
        for _ in range(5):
            assert (await stream.event()).startswith(":")
        assert time.monotonic() - began >= 0.4  # one per interval, and not one more
        queued.set()
        assert joined(await stream.rest()) == "late"


async def test_an_error_after_the_headers_is_an_event(shared: Running) -> None:
    queued = asyncio.Event()
    shared.engine.replies.append(Reply(text="late", queue=queued, faults=faults.StreamError(2, "broke", 500)))
    async with streaming(shared, "case-89-error", ask()) as stream:
        assert (await stream.event()).startswith(":")
        assert stream.response.status_code == 200
        queued.set()
        events = await stream.rest()
    assert "[DONE]" not in events
    assert events[-1]["error"]["type"] == "server_error"


async def text_of(asked: object) -> str:
    """The text of a reply of either kind."""
    got = await asked  # type: ignore[misc]
    if hasattr(got, "__aiter__"):
        return "".join([chunk.choices[0].delta.content or "" async for chunk in got])
    return got.choices[0].message.content or ""
