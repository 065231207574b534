"""Case 104 (maximhq/bifrost issue 7035, claude-code-router PR 1605): a gateway went on asking the engine for 20
minutes after its client had left.

Input: an engine that fails again and again, or aborts again and again, and an agent that leaves meanwhile.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.fake_sglang import Fault, Reply, faults
from tests.support.chat import ask, until_states
from tests.support.raw_agent import agent_of
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")
SETTINGS = {"engine_retries": 1000, "max_stalled_resumes": 1000}
KINDS: dict[str, Fault] = {
    "busy": faults.HttpError(503, {"error": {"message": "The request queue is full."}}),
    "dropped": faults.DropConnection(0),
    "aborted": faults.EngineAbort(0, None, None, "Aborted"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", KINDS)
async def test_the_engine_is_asked_no_more(shared: Running, kind: str, stream: bool) -> None:
    session, engine = f"case-104-{kind}-{stream}", shared.engine
    engine.script = lambda _: Reply(text="never", faults=KINDS[kind])
    engine.continue_aborted = False
    async with agent_of(shared, session, ask(stream=stream)):
        await engine.wait_requests(3)
    await until_states(shared, session, "detached")
    asked = len(engine.requests)
    await asyncio.sleep(0.5)  # several times the first back-offs
    assert len(engine.requests) == asked
