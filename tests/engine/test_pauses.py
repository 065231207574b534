"""Pauses and weight updates in the middle of replies: one slow call, exact ids, and the engine's own versions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.engine.steps import assert_scored, begun, exact_segment, story
from tests.engine.subject import Subject
from tests.support.chat import text_of
from tests.support.rollout import sampled_versions
from tests.support.running import Running

BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
LENGTH = 400
"""Long enough to be still under way when a pause comes, also where this process is slow and the engine is not."""


async def pause(running: Running, **fields: Any) -> dict[str, Any]:
    return await running.post("/v1/rollout/pause", fields)


async def resume(running: Running, **fields: Any) -> dict[str, Any]:
    return await running.post("/v1/rollout/resume", fields)


def versions_of_calls(subject: Subject, session: str) -> list[str]:
    """What the engine said of every id, over all calls of one step."""
    return [version for call in subject.tap.generations(session) for version in call.versions]


@BOTH_WAYS
async def test_weights_change_inside_a_pause_and_every_id_carries_the_version_that_sampled_it(
    subject: Subject, running: Running, stream: bool
) -> None:
    call, first = await begun(subject, running, "s", LENGTH, stream=stream)
    paused = await pause(running, reason="update")
    assert (paused["quiesced"], paused["suspended"], paused["version"]) == (True, 1, "1")
    assert paused["preempted_request_ids"] == [first.rid]
    assert first.finish == "abort"
    await subject.until_idle()
    await subject.update_weights(subject.second, "2")
    resumed = await resume(running, pause_id=paused["pause_id"], version="2")
    assert (resumed["paused"], resumed["version"]) == (False, "2")
    assert text_of(await call)
    segment = await exact_segment(subject, running, "s")
    sampled = sampled_versions(segment)
    assert sampled == versions_of_calls(subject, "s")
    assert set(sampled) == {"1", "2"}
    assert len(sampled) == LENGTH
    assert len(subject.tap.generations("s")) == 2
    # each part as its own weights compute it, the second one over ids that the first ones sampled
    assert await assert_scored(subject, segment, "2") == sampled.count("2")
    await subject.update_weights(subject.first, "1")
    assert await assert_scored(subject, segment, "1") == sampled.count("1")


async def test_a_pause_without_an_update_leaves_no_trace_in_the_segment(subject: Subject, running: Running) -> None:
    call, _ = await begun(subject, running, "s", LENGTH)
    for _ in range(2):
        paused = await pause(running)
        assert paused["quiesced"]
        await resume(running, pause_id=paused["pause_id"])
        count = len(subject.tap.generations("s"))
        await subject.tap.until(lambda count=count: len(subject.tap.generations("s")) > count or call.done())
    await call
    segment = await exact_segment(subject, running, "s")
    assert sampled_versions(segment) == ["1"] * LENGTH
    assert await assert_scored(subject, segment) == LENGTH


async def test_many_replies_are_all_aborted_and_all_go_on(subject: Subject, running: Running) -> None:
    names = [f"s{number}" for number in range(12)]  # more than run at a time: some wait in the engine's queue
    calls = [asyncio.ensure_future(running.chat(name, story(40))) for name in names]
    await subject.tap.until(lambda: all(subject.tap.generations(name) for name in names))
    await subject.tap.until_ids(names[0], 2)
    paused = await pause(running)
    assert (paused["quiesced"], paused["abort_failed_request_ids"]) == (True, [])
    await subject.until_idle()
    await resume(running)
    for call in calls:
        assert text_of(await call)
    for name in names:
        segment = await exact_segment(subject, running, name)
        assert sampled_versions(segment) == ["1"] * 40


async def test_an_engine_that_pauses_itself_in_mode_abort_is_waited_for(subject: Subject, running: Running) -> None:
    call, first = await begun(subject, running, "s", LENGTH)
    await subject.pause("abort")  # as slime does before an update, and nobody told the sidecar
    await subject.tap.until(lambda: len(subject.tap.generations("s")) == 2)
    assert first.finish == "abort"
    assert not call.done()
    await subject.update_weights(subject.second, "2")
    assert not subject.tap.generations("s")[1].events
    await subject.resume()
    await call
    segment = await exact_segment(subject, running, "s")
    assert sampled_versions(segment) == versions_of_calls(subject, "s")
    assert sampled_versions(segment).count("1") == len(first.output_ids)
    assert await assert_scored(subject, segment, "2") == LENGTH - len(first.output_ids)


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_a_reply_that_the_engine_holds_over_an_update_of_its_own_has_two_versions_in_one_call(
    subject: Subject, running: Running, mode: str
) -> None:
    call, _ = await begun(subject, running, "s", LENGTH)
    await subject.pause(mode)
    # in place the reply's keys and values stay in the cache, so it cannot be flushed
    await subject.update_weights(subject.second, "2", flush_cache=mode == "retract")
    await subject.resume()
    await call
    [engine_call] = subject.tap.generations("s")
    segment = await exact_segment(subject, running, "s")
    assert sampled_versions(segment) == engine_call.versions
    assert set(engine_call.versions) == {"1", "2"}
    if mode == "retract":
        assert engine_call.last["num_retractions"] == 1
        assert await assert_scored(subject, segment, "2") == engine_call.versions.count("2")


async def test_a_call_that_comes_while_the_engine_is_paused_waits_for_it(
    subject: Subject, running: Running
) -> None:
    await subject.pause("abort")
    call = asyncio.ensure_future(running.chat("s", story(8)))
    await subject.tap.until(lambda: subject.tap.generations("s"))
    await subject.resume()
    assert text_of(await call)
    assert sampled_versions(await exact_segment(subject, running, "s")) == ["1"] * 8


async def test_a_pause_over_a_call_that_a_paused_engine_blocks_quiesces_and_loses_nothing(
    subject: Subject, running: Running
) -> None:
    await subject.pause("abort")
    call = asyncio.ensure_future(running.chat("s", story(8)))
    await subject.tap.until(lambda: subject.tap.generations("s"))
    paused = await pause(running)
    assert (paused["quiesced"], paused["suspended"]) == (True, 1)
    await subject.resume()
    await subject.until_idle()
    await resume(running)
    assert text_of(await call)
    segment = await exact_segment(subject, running, "s")
    assert sampled_versions(segment) == ["1"] * 8


@pytest.mark.parametrize("whole_engine", [False, True], ids=["its-rid", "all"])
async def test_a_reply_that_somebody_else_aborts_goes_on(
    subject: Subject, running: Running, whole_engine: bool
) -> None:
    call, first = await begun(subject, running, "s", LENGTH)
    await subject.post("/abort_request", {"abort_all": True} if whole_engine else {"rid": first.rid})
    assert text_of(await call)
    assert len(subject.tap.generations("s")) == 2
    segment = await exact_segment(subject, running, "s")
    assert await assert_scored(subject, segment) == LENGTH


async def test_a_connection_that_breaks_costs_no_id_that_had_come(subject: Subject, running: Running) -> None:
    call, first = await begun(subject, running, "s", LENGTH)
    subject.tap.cut()
    assert text_of(await call)
    assert len(subject.tap.generations("s")) == 2
    assert first.output_ids
    segment = await exact_segment(subject, running, "s")
    assert sampled_versions(segment) == ["1"] * LENGTH
    assert await assert_scored(subject, segment) == LENGTH


async def test_a_step_on_its_way_through_a_pause_is_as_long_as_without_one(
    subject: Subject, running: Running
) -> None:
    text = text_of(await running.chat("straight", story(LENGTH)))
    assert len(subject.tap.generations("straight")[0].output_ids) == LENGTH
    assert text
    call, _ = await begun(subject, running, "s", LENGTH, after=10)
    await pause(running)
    await resume(running)
    answer = (await call).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == LENGTH
