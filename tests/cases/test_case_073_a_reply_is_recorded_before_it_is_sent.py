"""Case 73: elsewhere the reply was flushed first and recorded after, so a client that vanished left no turn.

Here a step is in the store before the first byte on which an agent can act; a vanished agent's step stays, marked
as not delivered, and a retry decides (`tests/gateway/test_disconnect.py` has the retry).
"""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from tests.fake_sglang import FakeSGLang, Reply
from tests.support.chat import ask, call_text, completion, streaming, tool
from tests.support.running import running_sidecar


def committed(state_dir: Path) -> list[tuple[str, str]]:
    """`(step_id, state)` of the steps that the file holds, as another process sees it."""
    with sqlite3.connect(f"file:{state_dir / 'tito.db'}?mode=ro", uri=True) as database:
        return list(database.execute("SELECT step_id, state FROM step"))


@pytest.mark.parametrize("text", ["Done.", call_text(at=1)], ids=["text", "call"])
async def test_the_store_has_the_step_before_the_agent_can_act_on_it(
    engine: FakeSGLang, tmp_path: Path, text: str
) -> None:
    async with running_sidecar(engine, tmp_path / "state") as running:
        engine.replies.append(Reply(text=text))
        async with streaming(running, "s", ask(tools=[tool()])) as agent:
            while not (await agent.chunk())["choices"][0]["finish_reason"]:  # agents act on that chunk
                pass
            assert committed(tmp_path / "state") == [(agent.response.headers["x-step-id"], "committed")]


async def test_a_whole_reply_is_stored_before_its_first_byte(engine: FakeSGLang, tmp_path: Path) -> None:
    async with running_sidecar(engine, tmp_path / "state") as running:
        store = running.sidecar._store
        save, stored = store.save_step, asyncio.Event()

        async def slowly(*arguments: object) -> None:
            await stored.wait()
            await save(*arguments)  # type: ignore[arg-type]

        store.save_step = slowly  # type: ignore[method-assign]
        engine.replies.append(Reply(text="Done."))
        call = asyncio.ensure_future(running.chat("s", ask()))
        await engine.wait_until(lambda: engine.requests and engine.requests[0].done)
        assert not call.done()
        stored.set()
        response = await call
        completion(response)
        assert committed(tmp_path / "state") == [(response.headers["x-step-id"], "committed")]
