"""Case 72 (ai-dynamo/dynamo PR 14276): SGLang goes on with a non-streamed call whose client has gone, and a rid can
only be aborted by who has chosen it. So the engine is always streamed, under a rid of ours, and its call ends when
the agent's does, streamed or not, intercepted or not.

Input: the agent drops its connection in the middle of the generation, and before its first token.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import Held, ask, until_states
from tests.support.intercepted import INTERCEPTED, agent_by
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")
SETTINGS = INTERCEPTED
WAYS = pytest.mark.parametrize("way", ["direct", "intercepted"])
BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@WAYS
@BOTH_WAYS
@pytest.mark.parametrize("begun", [False, True], ids=["before the first token", "in the middle"])
async def test_the_engines_call_ends_within_a_second_and_the_step_is_recorded(
    shared: Running, way: str, stream: bool, begun: bool
) -> None:
    session, engine, held = f"case-72-{way}-{stream}-{begun}", shared.engine, Held()
    engine.replies.append(held.reply() if begun else Reply(text="never", queue=asyncio.Event()))
    async with agent_by(way, shared, session) as agent:
        call = asyncio.ensure_future(consume(agent.chat.completions.create(**ask(), stream=stream)))
        if begun:
            request = await held.reached(engine)
        else:
            [request] = await engine.wait_requests(1)
        left_at = time.monotonic()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await engine.wait_until(lambda: request.done)
        assert time.monotonic() - left_at < 1
    assert request.stream
    assert len(request.rid) == 32
    assert request.outcome == "disconnected"
    [step] = (await until_states(shared, session, "detached"))["steps"]
    assert step["delivered"] is False
    assert step["output_tokens"] == len(request.output_ids)
    [aborted] = (await shared.finalize(session))["aborted_step_ids"]
    assert aborted == step["step_id"]


async def consume(asked: object) -> None:
    """Read a reply of either kind to its end."""
    got = await asked  # type: ignore[misc]
    if hasattr(got, "__aiter__"):
        async for _ in got:
            pass
