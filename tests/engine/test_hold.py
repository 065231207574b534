"""Mode `hold`: the sidecar only closes its gate; what runs is left to the modes of the engine's own pause."""

from __future__ import annotations

import asyncio

import pytest

from tests.engine.steps import assert_scored, begun, exact_segment, story
from tests.engine.subject import Subject
from tests.support.chat import text_of
from tests.support.rollout import sampled_versions
from tests.support.running import Running

LENGTH = 400
"""Long enough to be still under way when a pause comes, also where this process is slow and the engine is not."""


async def hold(running: Running, *running_rids: str) -> str:
    """Close the gate around calls that go on; the pause's id."""
    paused = await running.post("/v1/rollout/pause", {"mode": "hold"})
    assert (paused["mode"], paused["active"]) == ("hold", len(running_rids))
    assert paused["running_request_ids"] == list(running_rids)
    assert paused["preempted_request_ids"] == []
    return str(paused["pause_id"])


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_a_held_reply_goes_on_in_the_call_that_it_began_in_with_both_versions(
    subject: Subject, running: Running, mode: str
) -> None:
    call, first = await begun(subject, running, "s", LENGTH, stream=True)
    pause_id = await hold(running, first.rid)
    await subject.pause(mode)
    # in place the reply's keys and values stay in the cache, so it cannot be flushed
    await subject.update_weights(subject.second, "2", flush_cache=mode == "retract")
    late = asyncio.ensure_future(running.chat("late", story(8)))
    await subject.resume()
    assert text_of(await call)
    assert not subject.tap.generations("late"), "a call went through the closed gate"
    resumed = await running.post("/v1/rollout/resume", {"pause_id": pause_id, "version": "2"})
    assert resumed["version"] == "2"
    assert text_of(await late)
    assert subject.tap.generations("s") == [first]
    segment = await exact_segment(subject, running, "s")
    assert sampled_versions(segment) == first.versions
    assert set(first.versions) == {"1", "2"}
    assert sampled_versions(await exact_segment(subject, running, "late")) == ["2"] * 8
    if mode == "retract":
        assert await assert_scored(subject, segment, "2") == first.versions.count("2")


async def test_a_reply_that_the_engine_aborts_under_a_hold_waits_at_the_gate(
    subject: Subject, running: Running
) -> None:
    call, first = await begun(subject, running, "s", LENGTH, stream=True)
    pause_id = await hold(running, first.rid)
    await subject.pause("abort")
    await subject.tap.until(lambda: first.finish == "abort")
    await subject.update_weights(subject.second, "2")
    await subject.resume()
    again = await running.post("/v1/rollout/pause", {"mode": "hold", "pause_id": pause_id})
    assert (again["quiesced"], again["suspended"]) == (True, 1)
    assert subject.tap.generations("s") == [first]
    await running.post("/v1/rollout/resume", {"pause_id": pause_id})
    assert text_of(await call)
    segment = await exact_segment(subject, running, "s")
    count = len(first.output_ids)
    assert sampled_versions(segment) == ["1"] * count + ["2"] * (LENGTH - count)
    assert await assert_scored(subject, segment, "2") == LENGTH - count


async def test_a_hold_alone_lets_what_runs_come_to_its_end(subject: Subject, running: Running) -> None:
    call, first = await begun(subject, running, "s", LENGTH, stream=True)
    pause_id = await hold(running, first.rid)
    assert text_of(await call)
    await running.post("/v1/rollout/resume", {"pause_id": pause_id})
    segment = await exact_segment(subject, running, "s")
    assert await assert_scored(subject, segment) == LENGTH
