"""Agents that leave: the engine stops at once, and the step that they left is taken up again or thrown away."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tests.engine.steps import assert_scored, begun, exact_segment, story
from tests.engine.subject import Subject
from tests.support.chat import streaming, text_of, until_states
from tests.support.running import Running

LENGTH = 400
"""Long enough to be still running when its agent has gone."""


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_the_engine_stops_when_the_agent_has_gone(subject: Subject, running: Running, stream: bool) -> None:
    if stream:
        async with streaming(running, "s", story(LENGTH)) as agent:
            await agent.until_text()
        call = subject.tap.generations("s")[0]
    else:
        asked, call = await begun(subject, running, "s", LENGTH)
        asked.cancel()
        with suppress(asyncio.CancelledError):
            await asked
    await subject.tap.until(lambda: call.closed, 10)
    await subject.until_idle()
    assert len(call.output_ids) < LENGTH
    view = await until_states(running, "s", "detached")
    assert 0 < view["steps"][0]["output_tokens"] < LENGTH


async def test_a_retry_goes_on_with_the_step_that_its_agent_left(subject: Subject, running: Running) -> None:
    body = story(160)
    asked = asyncio.ensure_future(running.chat("s", body))
    first = await subject.tap.until_ids("s", 4)
    asked.cancel()
    await subject.tap.until(lambda: first.closed)
    await until_states(running, "s", "detached")
    again = await running.chat("s", body, x_stainless_retry_count="1")
    assert text_of(again)
    second = subject.tap.generations("s")[1]
    assert len(second.input_ids) > len(first.input_ids)
    segment = await exact_segment(subject, running, "s", agent_left=True)
    assert sum(segment["full_loss_mask"]) == 160
    assert await assert_scored(subject, segment) == 160


async def test_a_discarded_session_leaves_nothing_in_the_engine(subject: Subject, running: Running) -> None:
    call, engine_call = await begun(subject, running, "s", LENGTH)
    assert (await running.post("/session/discard", {"session_id": "s"}))["session_removed"]
    assert (await call).status_code == 409
    assert engine_call.closed
    await subject.until_idle()
    assert len(subject.tap.generations("s")) == 1
