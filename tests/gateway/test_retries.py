"""A client library's retry (it says so in a header) never makes a second sample; an equal body without it does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx
import openai
import pytest

from sidecar.store.protocol import StoreError
from sidecar.tito.records import StepRecord
from tests.fake_sglang import Reply, faults
from tests.support.chat import (
    Held,
    ask,
    call_text,
    completion,
    follow,
    joined,
    payloads,
    text_of,
    tool,
    until_states,
    user,
)
from tests.support.running import Running
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
RETRY = {"x_stainless_retry_count": "1"}


async def readers(running: Running, session: str, count: int) -> None:
    """Until that many agents follow the session's one running step."""
    [run] = running.sidecar.registry._sessions[session].runs.values()
    await until(lambda: len(run._readers) == count, f"{count} readers")


async def gone(running: Running, session: str, body: dict[str, Any], held: Held, **headers: str) -> None:
    """A call whose agent leaves when the engine has reached the hold; the step is detached then."""
    index = len(running.engine.requests)
    call = asyncio.ensure_future(running.chat(session, body, **headers))
    request = await held.reached(running.engine, index)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await running.engine.wait_until(lambda: request.done)


@BOTH_WAYS
async def test_a_marked_retry_joins_the_step_that_runs(shared: Running, stream: bool) -> None:
    session, held = f"joined-{stream}", Held()
    shared.engine.replies.append(held.reply())
    body = ask(stream=stream)
    first = asyncio.ensure_future(shared.chat(session, body))
    await held.reached(shared.engine)
    second = asyncio.ensure_future(shared.chat(session, body, **RETRY))
    await readers(shared, session, 2)
    held.open.set()
    one, two = await asyncio.gather(first, second)
    assert text_of(one) == text_of(two) == held.text
    assert one.headers["x-step-id"] == two.headers["x-step-id"]
    assert len(shared.engine.requests) == 1
    assert len((await shared.view(session))["steps"]) == 1


@BOTH_WAYS
async def test_the_first_agent_may_leave_when_a_retry_has_joined(shared: Running, stream: bool) -> None:
    session, held = f"took-over-{stream}", Held()
    shared.engine.replies.append(held.reply())
    body = ask(stream=stream)
    first = asyncio.ensure_future(shared.chat(session, body))
    request = await held.reached(shared.engine)
    second = asyncio.ensure_future(shared.chat(session, body, **RETRY))
    await readers(shared, session, 2)
    first.cancel()
    await readers(shared, session, 1)
    assert not request.done
    held.open.set()
    assert text_of(await second) == held.text
    assert len(shared.engine.requests) == 1


@BOTH_WAYS
async def test_a_marked_retry_resumes_a_detached_step_from_its_ids(shared: Running, stream: bool) -> None:
    session, held = f"resumed-{stream}", Held()
    shared.engine.replies.append(held.reply())
    body = ask(stream=stream)
    await gone(shared, session, body, held)
    [detached] = (await until_states(shared, session, "detached"))["steps"]
    response = await shared.chat(session, body, **RETRY)
    assert text_of(response) == held.text
    assert response.headers["x-step-id"] == detached["step_id"]
    first, second = shared.engine.requests
    assert second.input_ids == first.input_ids + first.output_ids
    [step] = (await shared.view(session))["steps"]
    assert (step["state"], step["delivered"]) == ("committed", True)
    [segment] = await shared.segments(session)
    assert segment["tokens"] == second.input_ids + second.output_ids
    assert sum(segment["full_loss_mask"]) == len(first.output_ids) + len(second.output_ids)


async def test_a_resumed_step_that_cannot_go_on_from_ids_starts_over(shared: Running) -> None:
    held = Held()
    shared.engine.replies.append(held.reply())
    body = ask(frequency_penalty=0.5)
    await gone(shared, "starts-over", body, held)
    await until_states(shared, "starts-over", "detached")
    assert text_of(await shared.chat("starts-over", body, **RETRY)) == held.text
    first, second = shared.engine.requests
    assert first.output_ids
    assert second.input_ids == first.input_ids


@BOTH_WAYS
async def test_a_marked_retry_of_a_finished_step_gets_the_recorded_reply(shared: Running, stream: bool) -> None:
    session = f"replayed-{stream}"
    said = f"<think>\nhm\n</think>\n\nLook: é🎉\n{call_text(at=1)}"
    shared.engine.replies.append(Reply(text=said))
    body = ask(tools=[tool()], stream=stream, logprobs=True, **usage(stream))
    first = await shared.chat(session, body)
    again = await shared.chat(session, body, **RETRY)
    assert again.headers["content-type"] == first.headers["content-type"]
    assert again.headers["x-step-id"] == first.headers["x-step-id"]
    assert len(shared.engine.requests) == 1
    assert len((await shared.view(session))["steps"]) == 1
    if stream:
        assert summary(payloads(again.text)) == summary(payloads(first.text))
    else:
        assert unstamped(again) == unstamped(first)


def usage(stream: bool) -> dict[str, Any]:
    return {"stream_options": {"include_usage": True}} if stream else {}


def unstamped(response: httpx.Response) -> dict[str, Any]:
    parsed: dict[str, Any] = completion(response).model_dump()
    return {name: value for name, value in parsed.items() if name != "created"}


def summary(chunks: list[Any]) -> list[Any]:
    calls = [d for c in chunks[:-1] for x in c["choices"] for d in x["delta"].get("tool_calls") or ()]
    return [
        joined(chunks),
        joined(chunks, "reasoning_content"),
        calls,
        chunks[-3]["choices"],
        chunks[-2]["usage"],
        chunks[-1],
        chunks[0]["id"],
    ]


async def test_an_equal_body_that_is_not_marked_is_a_new_sample(shared: Running) -> None:
    shared.engine.replies.extend([Reply(text="one"), Reply(text="another")])
    texts = [text_of(await shared.chat("sampled-twice", ask())) for _ in range(2)]
    assert texts == ["one", "another"]
    steps = (await shared.view("sampled-twice"))["steps"]
    assert [step["parent"] for step in steps] == [None, None]
    segments = await shared.segments("sampled-twice")
    assert [sum(segment["full_loss_mask"]) > 0 for segment in segments] == [True, True]


async def test_an_equal_body_that_is_not_marked_runs_beside_the_first(shared: Running) -> None:
    held = Held()
    shared.engine.replies.extend([held.reply(), Reply(text="another")])
    first = asyncio.ensure_future(shared.chat("beside", ask()))
    await held.reached(shared.engine)
    assert text_of(await shared.chat("beside", ask())) == "another"
    held.open.set()
    assert text_of(await first) == held.text


async def test_a_marked_retry_with_another_body_is_a_call_of_its_own(shared: Running) -> None:
    shared.engine.replies.extend([Reply(text="one"), Reply(text="another")])
    assert text_of(await shared.chat("other-body", ask())) == "one"
    assert text_of(await shared.chat("other-body", ask("Hi!"), **RETRY)) == "another"


async def test_a_marked_retry_in_another_session_is_a_call_of_its_own(shared: Running) -> None:
    shared.engine.replies.extend([Reply(text="one"), Reply(text="another")])
    assert text_of(await shared.chat("session-a", ask())) == "one"
    assert text_of(await shared.chat("session-b", ask(), **RETRY)) == "another"


@pytest.mark.parametrize("count", ["0", "", "-1", "x", "1.5", "²", "9" * 5000])
async def test_only_a_positive_count_marks_a_retry(shared: Running, count: str) -> None:
    shared.engine.replies.extend([Reply(text="one"), Reply(text="another")])
    session = f"count-{len(count)}-{count[:1]}"
    assert text_of(await shared.chat(session, ask())) == "one"
    headers = {"x-stainless-retry-count": count.encode()}
    url = f"/sessions/{session}/v1/chat/completions"
    assert text_of(await shared.data.post(url, json=ask(), headers=headers)) == "another"


async def test_a_marked_retry_of_two_choices_gets_both(shared: Running) -> None:
    shared.engine.replies.extend([Reply(text="one"), Reply(text="another")])
    first = await shared.chat("two-again", ask(n=2))
    again = await shared.chat("two-again", ask(n=2), **RETRY)
    assert unstamped(again) == unstamped(first)
    assert len(shared.engine.requests) == 2


async def test_a_retry_gets_choices_in_their_order_whichever_was_done_first(shared: Running) -> None:
    held = Held()
    shared.engine.replies.extend([held.reply(), Reply(text="another")])
    call = asyncio.ensure_future(shared.chat("order", ask(n=2)))
    await held.reached(shared.engine, 0)
    session = shared.sidecar.registry._sessions["order"]
    await until(lambda: len(session.trajectory) == 1, "one choice is done")
    held.open.set()
    first = await call
    assert unstamped(await shared.chat("order", ask(n=2), **RETRY)) == unstamped(first)


async def test_the_sdks_own_retry_after_a_503_makes_one_step(shared: Running) -> None:
    shared.engine.replies.append(Reply(text="at last"))
    shared.engine.fail_next(faults.HttpError(500))
    seen: list[str] = []

    async with shared.agent("sdk-retry", max_retries=2) as agent:
        watch(agent, seen)
        got = await agent.chat.completions.create(**ask())
    assert got.choices[0].message.content == "at last"
    assert seen == ["0", "1"]
    [step] = (await shared.view("sdk-retry"))["steps"]
    assert step["delivered"]
    [segment] = await shared.segments("sdk-retry")
    assert sum(segment["full_loss_mask"]) == len(shared.engine.requests[-1].output_ids)


async def test_the_sdks_own_retry_after_a_timeout_resumes_its_step(shared: Running) -> None:
    held = Held()
    shared.engine.replies.append(held.reply())
    seen: list[str] = []
    async with shared.agent("sdk-timeout", max_retries=2, timeout=0.5) as agent:
        watch(agent, seen)
        got = await agent.chat.completions.create(**ask())
    assert got.choices[0].message.content == held.text
    assert seen == ["0", "1"]
    first, second = shared.engine.requests
    assert second.input_ids == first.input_ids + first.output_ids
    assert len((await shared.view("sdk-timeout"))["steps"]) == 1


def watch(agent: openai.AsyncOpenAI, seen: list[str]) -> None:
    """Note the retry header of every request that the SDK sends."""
    send = agent._client.send

    async def noting(request: Any, **options: Any) -> Any:
        seen.append(request.headers["x-stainless-retry-count"])
        return await send(request, **options)

    agent._client.send = noting  # type: ignore[method-assign]


async def test_a_replay_does_not_disturb_the_conversation(shared: Running) -> None:
    shared.engine.replies.extend([Reply(text="one"), Reply(text="two")])
    body = ask()
    await shared.chat("undisturbed", body)
    answer = completion(await shared.chat("undisturbed", body, **RETRY)).choices[0].message
    await shared.chat("undisturbed", follow(body, answer.model_dump(exclude_none=True), "More"))
    shared.engine.assert_i1(session="undisturbed")
    [segment] = await shared.segments("undisturbed")
    assert segment["segment_count"] == 1


async def test_a_retry_joins_a_call_that_waits_at_a_pause(shared: Running) -> None:
    shared.engine.replies.append(Reply(text="later"))
    pause = await shared.post("/v1/rollout/pause")
    first = asyncio.ensure_future(shared.chat("waits", ask()))
    await until_states(shared, "waits", "running")
    second = asyncio.ensure_future(shared.chat("waits", ask(), **RETRY))
    await readers(shared, "waits", 2)
    assert not shared.engine.requests
    await shared.post("/v1/rollout/resume", {"pause_id": pause["pause_id"]})
    assert [text_of(response) for response in await asyncio.gather(first, second)] == ["later"] * 2
    assert len(shared.engine.requests) == 1


async def test_history_that_ends_in_a_question_is_no_retry(shared: Running) -> None:
    shared.engine.replies.extend([Reply(text="one"), Reply(text="two")])
    body = ask(messages=[user("a"), user("b")])
    assert text_of(await shared.chat("two-users", body)) == "one"
    assert text_of(await shared.chat("two-users", ask(messages=[user("a")]), **RETRY)) == "two"


@BOTH_WAYS
async def test_a_marked_retry_of_two_choices_of_which_one_was_finished_gets_both(
    shared: Running, stream: bool
) -> None:
    session, held = f"half-{stream}", Held()
    shared.engine.replies.extend([Reply(text="quick"), held.reply()])
    body = ask(n=2, stream=stream)
    call = asyncio.ensure_future(shared.chat(session, body))
    request = await held.reached(shared.engine, 1)
    await until(lambda: len(states(shared, session)) == 1, "a choice that is finished")
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await shared.engine.wait_until(lambda: request.done)
    again = await shared.chat(session, body, **RETRY)
    steps = (await shared.view(session))["steps"]
    assert sorted(again.headers["x-step-id"].split(",")) == sorted(step["step_id"] for step in steps)
    assert [(step["state"], step["delivered"]) for step in steps] == [("committed", True)] * 2
    if stream:
        texts = [joined(payloads(again.text), index=index) for index in (0, 1)]
    else:
        texts = [choice.message.content or "" for choice in completion(again).choices]
    assert sorted(texts) == sorted(["quick", held.text])
    _, second, third = shared.engine.requests
    assert third.input_ids == second.input_ids + second.output_ids


def states(running: Running, session: str) -> list[str]:
    """The states of the steps in the session's trajectory."""
    return [node.record.state for node in running.sidecar.registry._sessions[session].trajectory]


async def test_a_resumed_step_that_fails_is_aborted_as_the_store_will_say(shared: Running) -> None:
    held = Held()
    shared.engine.replies.append(held.reply())
    await gone(shared, "resumed-fails", ask(), held)
    [detached] = (await until_states(shared, "resumed-fails", "detached"))["steps"]
    shared.engine.fail_next(faults.HttpError(500))
    response = await shared.chat("resumed-fails", ask(), **RETRY)
    assert response.status_code == 503
    [step] = (await shared.view("resumed-fails"))["steps"]
    assert (step["state"], step["step_id"]) == ("aborted", detached["step_id"])
    assert step["output_tokens"] == held.after
    shared.engine.replies.append(Reply(text="fresh"))
    shared.engine.continue_aborted = False
    try:
        assert text_of(await shared.chat("resumed-fails", ask(), x_stainless_retry_count="2")) == "fresh"
    finally:
        shared.engine.continue_aborted = True
    [segment] = await shared.segments("resumed-fails")
    assert segment["extra_info"]["untrainable"] == [{"step_id": step["step_id"], "reason": "overtaken"}]


async def test_a_call_that_is_committed_while_a_retry_replaces_an_aborted_step_disturbs_nobody(
    shared: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, body, held = "replacing", ask(), Held()
    shared.engine.replies.append(held.reply())
    await gone(shared, session, body, held)
    await until_states(shared, session, "detached")
    live = shared.sidecar.registry._sessions[session]
    [run] = live.runs.values()
    run.abort("nobody came")
    await until_states(shared, session, "aborted")
    store = live.store
    save_step = store.save_step

    async def save_late(record: StepRecord, blobs: Mapping[bytes, bytes]) -> None:
        if record.superseded_by is not None:
            shared.engine.replies.append(Reply(text="beside"))
            assert text_of(await shared.chat(session, ask("Another"))) == "beside"
        await save_step(record, blobs)

    monkeypatch.setattr(store, "save_step", save_late)
    assert text_of(await shared.chat(session, body, **RETRY)) == held.text
    states = [step["state"] for step in (await shared.view(session))["steps"]]
    assert states == ["aborted", "committed", "committed"]


async def test_a_retry_that_is_committed_stays_so_though_the_step_it_replaces_cannot_be_marked(
    shared: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, body, first, second = "marked", ask(), Held(), Held()
    shared.engine.continue_aborted = False
    shared.engine.replies += [first.reply(), second.reply(), Reply(text=second.text)]
    try:
        await gone(shared, session, body, first)
        await until_states(shared, session, "detached")
        live = shared.sidecar.registry._sessions[session]
        [run] = live.runs.values()
        run.abort("nobody came")
        await until_states(shared, session, "aborted")
        await gone(shared, session, body, second, **RETRY)
        await until_states(shared, session, "aborted", "detached")
        save_step = live.store.save_step

        async def cannot_mark(record: StepRecord, blobs: Mapping[bytes, bytes]) -> None:
            if record.superseded_by is not None:
                raise StoreError("the disk is full")
            await save_step(record, blobs)

        monkeypatch.setattr(live.store, "save_step", cannot_mark)
        assert (await shared.chat(session, body, x_stainless_retry_count="2")).status_code == 200
    finally:
        shared.engine.continue_aborted = True
    stored = await shared.sidecar._store.load_session(session)
    assert stored is not None
    assert [step.state for step in stored.steps] == ["aborted", "committed"]
    assert [step["state"] for step in (await shared.view(session))["steps"]] == ["aborted", "committed"]
