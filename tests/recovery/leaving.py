"""Agents that hang up in the middle of a reply. One event loop."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.fake_sglang import RecordedRequest
from tests.support.chat import Held
from tests.support.running import Running

RETRY = {"x_stainless_retry_count": "1"}


async def detach(running: Running, session: str, body: dict[str, Any], **headers: str) -> RecordedRequest:
    """A call whose agent leaves after three ids of ten; its step is stored as detached then. What the engine was
    asked."""
    held, before = Held(), len(running.engine.requests)
    running.engine.replies.append(held.reply())
    return await leave(running, session, body, held, before, **headers)


async def leave(
    running: Running, session: str, body: dict[str, Any], held: Held, index: int, **headers: str
) -> RecordedRequest:
    """A call whose agent leaves when the engine's request at `index` has reached the hold."""
    call = asyncio.ensure_future(running.chat(session, body, **headers))
    request = await held.reached(running.engine, index)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await running.engine.wait_until(lambda: request.done)
    await until_stored(running, session)
    return request


async def until_stored(running: Running, session: str) -> None:
    """Until no step of the session runs and what is detached is in the store."""
    store = running.sidecar._store
    async with asyncio.timeout(30):
        while True:
            live = running.sidecar.registry._sessions[session]
            stored = await store.load_session(session)
            assert stored is not None
            rows = {step.step_id: len(step.output_ids) for step in stored.steps if step.state == "detached"}
            if all(
                run.detached and rows.get(run.step_id) == len(run.generation.output_ids)
                for run in live.runs.values()
            ):
                return
            await asyncio.sleep(0.001)
