"""Pause and resume around a weight update: the agent sees one slow call, the trainer exact ids and versions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fake_sglang import FakeSGLang, RecordedRequest, Reply
from tests.support.chat import Held, ask, completion, joined, streaming, text_of, tool
from tests.support.rollout import pause, resume, sampled_versions, state
from tests.support.running import Running, engine_for, running_sidecar
from tests.support.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("resumed")]
BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
SETTINGS = {"heartbeat_interval": 0.05}


async def update_weights(engine: FakeSGLang, version: str) -> None:
    """As a trainer does it: by the engine's own endpoint, which aborts what runs."""
    async with httpx.AsyncClient(base_url=engine.url) as client:
        response = await client.post("/update_weight_version", json={"new_version": version})
        assert response.status_code == 200


async def assert_one_exact_step(running: Running, session: str, requests: list[RecordedRequest]) -> dict[str, Any]:
    """The requests are pieces of one step, and the session's only segment is what they sampled; the segment."""
    running.engine.assert_i1(session=session)
    running.engine.recorder.assert_token_exact(requests)
    [segment] = await running.segments(session)
    assert segment["tokens"] == requests[-1].input_ids + requests[-1].output_ids
    sampled = sum(len(request.output_ids) for request in requests)
    assert segment["full_loss_mask"] == [0] * len(requests[0].input_ids) + [1] * sampled
    logprobs = [logprob for request in requests for logprob in request.output_logprobs]
    assert segment["full_logprobs"][len(requests[0].input_ids) :] == logprobs
    return segment


@BOTH_WAYS
@pytest.mark.parametrize("incremental", [False, True], ids=["cumulative", "incremental"])
async def test_a_pause_in_the_middle_of_a_reply_is_one_slow_call_with_two_versions(
    qwen3_dir: Path, tmp_path: Path, stream: bool, incremental: bool
) -> None:
    async with (
        engine_for(qwen3_dir, incremental=incremental, weight_version="1") as engine,
        running_sidecar(engine, tmp_path / "state") as running,
    ):
        held = Held("<think>\nhm\n</think>\n\none two three 🎉 four five", after=9)
        engine.replies.append(held.reply())
        call = asyncio.ensure_future(running.chat("s", ask(stream=stream)))
        first = await held.reached(engine)
        paused = await pause(running, reason="update")
        assert paused["status"] == "paused"
        assert paused["quiesced"]
        assert (paused["mode"], paused["active"], paused["suspended"]) == ("abort", 0, 1)
        assert paused["preempted_request_ids"] == [first.rid]
        assert paused["abort_failed_request_ids"] == []
        assert paused["version"] == "1"
        assert first.outcome == "aborted"
        await update_weights(engine, "2")
        again = await resume(running, pause_id=paused["pause_id"], version="2")
        assert (again["status"], again["paused"], again["version"]) == ("resumed", False, "2")
        assert text_of(await call) == "one two three 🎉 four five"
        first, second = engine.requests
        assert second.sampling_params["max_new_tokens"] == first.sampling_params["max_new_tokens"] - held.after
        segment = await assert_one_exact_step(running, "s", engine.requests)
        assert sampled_versions(segment) == ["1"] * held.after + ["2"] * len(second.output_ids)
        [step] = (await running.view("s"))["steps"]
        assert step["versions"] == ["1", "2"]


async def test_what_an_agent_read_before_the_pause_stays_true_after_it(shared: Running) -> None:
    held = Held()
    shared.engine.replies.append(held.reply())
    async with streaming(shared, "read-before", ask()) as agent:
        begun = await agent.until_text()
        await held.reached(shared.engine)
        await pause(shared)
        while await agent.event() != ": heartbeat":  # signs of life while paused
            pass
        await resume(shared)
        rest = await agent.rest()
    assert rest[-1] == "[DONE]"
    assert held.text.startswith(begun)
    assert held.text.endswith(joined(rest))
    await assert_one_exact_step(shared, "read-before", shared.engine.requests)


async def test_three_pauses_in_one_reply_are_four_pieces(shared: Running) -> None:
    shared.engine.replies.append(Reply(text="word " * 40, chunk_tokens=1, delay=0.005))
    call = asyncio.ensure_future(shared.chat("thrice", ask()))
    for count in range(1, 4):
        await shared.engine.wait_until(
            lambda count=count: len(shared.engine.requests) == count and shared.engine.requests[-1].output_ids
        )
        paused = await pause(shared)
        assert paused["quiesced"]
        shared.engine.set_weight_version(f"v{count}")
        await resume(shared, pause_id=paused["pause_id"])
    assert text_of(await call) == "word " * 40
    segment = await assert_one_exact_step(shared, "thrice", shared.engine.requests)
    assert len(shared.engine.requests) == 4
    versions = sampled_versions(segment)
    assert list(dict.fromkeys(versions))[1:] == ["v1", "v2", "v3"]
    assert [versions.count(f"v{n}") for n in (1, 2, 3)] == [len(r.output_ids) for r in shared.engine.requests[1:]]


async def test_a_weight_update_that_nobody_announced_loses_nothing(shared: Running) -> None:
    """Case 67: `/update_weight_version` aborts everything by default."""
    held = Held()
    shared.engine.set_weight_version("old")
    shared.engine.replies.append(held.reply())
    call = asyncio.ensure_future(shared.chat("unannounced", ask()))
    first = await held.reached(shared.engine)
    await update_weights(shared.engine, "new")
    assert text_of(await call) == held.text
    segment = await assert_one_exact_step(shared, "unannounced", shared.engine.requests)
    # SGLang names the span's version when the aborted request ends, which is before or after the update
    assert sampled_versions(segment)[held.after :] == ["new"] * (len(segment["tokens"]) - len(first.input_ids) - 3)


async def test_the_engines_own_pause_is_survived(shared: Running) -> None:
    """slime posts `/pause_generation` with `{}`, which aborts; new requests block until the engine continues."""
    held = Held()
    shared.engine.replies.append(held.reply())
    call = asyncio.ensure_future(shared.chat("engine-paused", ask()))
    await held.reached(shared.engine)
    async with httpx.AsyncClient(base_url=shared.engine.url, timeout=30) as client:
        await client.post("/pause_generation", json={})
        await shared.engine.wait_requests(2)
        assert not call.done()
        await client.post("/continue_generation", json={})
    assert text_of(await call) == held.text
    await assert_one_exact_step(shared, "engine-paused", shared.engine.requests)


async def test_a_call_that_the_paused_engine_holds_is_preempted_too(shared: Running) -> None:
    async with httpx.AsyncClient(base_url=shared.engine.url, timeout=30) as client:
        await client.post("/pause_generation", json={"mode": "retract"})
        shared.engine.replies.append(Reply(text="ok"))
        call = asyncio.ensure_future(shared.chat("blocked", ask()))
        await shared.engine.wait_requests(1)
        paused = await pause(shared)
        assert paused["quiesced"]
        assert len(paused["preempted_request_ids"]) == 1
        await client.post("/continue_generation", json={})
    await resume(shared)
    assert text_of(await call) == "ok"


@BOTH_WAYS
async def test_new_calls_wait_at_the_gate_and_are_admitted_after_it(shared: Running, stream: bool) -> None:
    await pause(shared)
    session = f"waits-{stream}"
    shared.engine.replies.append(Reply(text="ok"))
    call = asyncio.ensure_future(shared.chat(session, ask(stream=stream)))

    async def held_back() -> bool:
        return bool((await state(shared))["suspended"])

    await until(held_back, "a call held at the gate")
    assert (await state(shared))["active"] == 0
    assert not shared.engine.requests
    resumed = await resume(shared)
    assert text_of(await call) == "ok"
    assert resumed["suspended"] in (0, 1)


async def test_bad_requests_are_refused_at_once_while_paused(shared: Running) -> None:
    await pause(shared)
    assert (await shared.chat("refused", ask(n="x"))).status_code == 400


async def test_a_reply_that_cannot_go_on_from_ids_starts_over_after_a_pause(shared: Running) -> None:
    held = Held()
    shared.engine.replies.append(held.reply())
    shared.engine.set_weight_version("a")
    async with streaming(shared, "over", ask(repetition_penalty=1.2)) as agent:
        first = await held.reached(shared.engine)
        paused = await pause(shared)
        assert paused["preempted_request_ids"] == [first.rid]
        shared.engine.set_weight_version("b")
        await resume(shared)
        assert joined(await agent.rest()) == held.text
    _, second = shared.engine.requests
    assert second.input_ids == first.input_ids
    [step] = (await shared.view("over"))["steps"]
    assert step["versions"] == ["b"]
    assert step["output_tokens"] == len(second.output_ids)


async def test_a_tool_call_across_a_pause_is_whole(shared: Running) -> None:
    held = Held('<tool_call>\n{"name": "look", "arguments": {"at": 12345}}\n</tool_call>', after=8)
    shared.engine.replies.append(held.reply())
    call = asyncio.ensure_future(shared.chat("tool", ask(tools=[tool()])))
    await held.reached(shared.engine)
    await pause(shared)
    await resume(shared)
    [made] = completion(await call).choices[0].message.tool_calls or ()
    assert made.function.arguments == '{"at": 12345}'


async def test_a_stop_string_across_a_pause_is_found(shared: Running) -> None:
    held = Held("one two three four", after=2)
    shared.engine.replies.append(held.reply())
    call = asyncio.ensure_future(shared.chat("seam", ask(stop=["two three"])))
    await held.reached(shared.engine)
    await pause(shared)
    await resume(shared)
    response = completion(await call)
    assert response.choices[0].message.content == "one "
    assert response.choices[0].finish_reason == "stop"


async def test_fifty_generations_in_flight_quiesce_and_all_go_on(shared: Running) -> None:
    shared.engine.script = lambda request: Reply(text=f"{request.session} " * 10, chunk_tokens=1, delay=0.05)
    calls = [asyncio.ensure_future(shared.chat(f"many-{n}", ask(stream=bool(n % 2)))) for n in range(50)]
    await shared.engine.wait_requests(50)
    paused = await pause(shared, timeout_seconds=30)
    assert paused["quiesced"]
    assert paused["abort_failed_request_ids"] == []
    assert (await state(shared))["active"] == 0
    assert not any(not request.done for request in shared.engine.requests)
    before = len(shared.engine.requests)
    await resume(shared)
    texts = [text_of(response) for response in await asyncio.gather(*calls)]
    assert texts == [f"many-{n} " * 10 for n in range(50)]
    assert len(shared.engine.requests) > before
    for n in range(50):
        shared.engine.assert_i1(session=f"many-{n}")


async def test_a_pause_that_waits_no_time_still_aborts(shared: Running) -> None:
    held = Held()
    shared.engine.replies.append(held.reply())
    call = asyncio.ensure_future(shared.chat("no-time", ask()))
    first = await held.reached(shared.engine)
    await pause(shared, timeout_seconds=0)
    await shared.engine.wait_until(lambda: first.done)
    assert first.outcome == "aborted"
    await resume(shared)
    assert text_of(await call) == held.text


async def test_what_finished_as_the_abort_came_is_finished(shared: Running) -> None:
    """A natural end just after an abort was asked for is the end: nothing is sampled past it."""
    held = Held("ab", after=1)
    shared.engine.replies.append(held.reply())
    call = asyncio.ensure_future(shared.chat("natural", ask()))
    first = await held.reached(shared.engine)
    held.open.set()
    await pause(shared)
    await resume(shared)
    assert text_of(await call) == "ab"
    assert (
        sum(len(request.output_ids) for request in shared.engine.requests)
        == len(shared.engine.vocabulary.encode("ab")) + 1
    )
    assert first.done
