"""Rows are asked for once, kept through preemptions, restarts and branches, and read as the router chose them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.fake_sglang import FakeSGLang, Reply, faults
from tests.routing_replay.rows import ENGINE, SETTINGS, SHAPE, asked, assert_rows, only_segment, reasons, rows_of
from tests.support.chat import Held, ask, completion, follow, user
from tests.support.conversation import Conversation
from tests.support.running import Running, engine_for, running_sidecar
from tests.support.waiting import until

__all__ = ["ENGINE", "SETTINGS"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def paused(running: Running, held: Held, version: str | None = None) -> None:
    """A pause in the middle of the held reply, with new weights in it."""
    request = await held.reached(running.engine)
    await running.post("/v1/rollout/pause", {})
    await running.engine.wait_until(lambda: request.done)
    if version is not None:
        running.engine.set_weight_version(version)
    await running.post("/v1/rollout/resume", {})


async def test_each_turn_asks_only_for_what_is_new(shared: Running) -> None:
    talk = Conversation(shared, "turns")
    for text in ("One.", "Two.", "Three."):
        await talk.say(user(f"say {text}"), reply=text)
    first, second, third = talk.requests
    assert [asked(first), asked(second), asked(third)] == [
        0,
        len(first.input_ids) + len(first.output_ids) - 1,
        len(second.input_ids) + len(second.output_ids) - 1,
    ]
    segment = await only_segment(shared, "turns")
    assert_rows(segment)
    assert rows_of(segment).dtype == "uint8"
    assert "routed_rows_missing" not in segment["extra_info"]


@pytest.mark.parametrize("version", [None, "2"], ids=["same weights", "new weights"])
async def test_a_preempted_step_asks_for_the_rest(shared: Running, version: str | None) -> None:
    session, held = f"preempted-{version}", Held()
    shared.engine.replies.append(held.reply())
    call = asyncio.ensure_future(shared.chat(session, ask()))
    await paused(shared, held, version)
    completion(await call)
    first, second = shared.engine.requests
    assert asked(first) == 0
    assert asked(second) == len(second.input_ids) - 1
    segment = await only_segment(shared, session)
    assert_rows(segment)
    assert reasons(segment) == []


async def test_a_step_aborted_in_the_queue_lost_nothing(shared: Running) -> None:
    queue = asyncio.Event()
    shared.engine.replies.append(Reply(text="One two.", queue=queue))
    call = asyncio.ensure_future(shared.chat("queued", ask()))
    active = shared.engine.intake.active
    await until(lambda: any(one.plan.queue_met for one in active.values()), "a request in the queue")
    shared.engine.state.abort(abort_all=True)
    await shared.engine.wait_requests(2)
    queue.set()
    completion(await call)
    assert [asked(request) for request in shared.engine.requests] == [0, 0]
    assert_rows(await only_segment(shared, "queued"))


async def test_rows_lost_with_a_connection_come_with_the_next_call(shared: Running) -> None:
    talk = Conversation(shared, "lost")
    await talk.say(user("Hi"), reply="Hello.")
    await talk.say(
        user("Go on"), reply=Reply(text="one two three four five", chunk_tokens=1, faults=faults.DropConnection(3))
    )
    first, second, third = talk.requests
    assert asked(second) == asked(third) == len(first.input_ids) + len(first.output_ids) - 1
    assert len(third.input_ids) == len(second.input_ids) + 3
    segment = await only_segment(shared, "lost")
    assert_rows(segment)
    assert reasons(segment) == []


async def test_rows_made_anew_by_other_weights_do_not_train(shared: Running) -> None:
    talk = Conversation(shared, "replaced")
    await talk.say(user("Hi"), reply="Hello.")
    hold = asyncio.Event()
    shared.engine.replies.append(Reply(text="one two three four", chunk_tokens=1, hold=hold, hold_after=3))
    call = asyncio.ensure_future(
        shared.chat("replaced", {"model": "m", "messages": [*talk.messages, user("Go on")]})
    )
    [_, request] = await shared.engine.wait_requests(2)
    await shared.engine.wait_tokens(request, 3)
    [run] = shared.sidecar.registry._sessions["replaced"].runs.values()
    await until(lambda: len(run.generation.output_ids) == 3, "the ids at the sidecar")
    await shared.engine.down()
    shared.engine.set_weight_version("77")
    await shared.engine.up()
    hold.set()
    completion(await call)
    segment = await only_segment(shared, "replaced")
    assert reasons(segment) == ["replay_rows"]
    assert_rows(segment)  # every token has a row, but the step does not train
    assert segment["full_loss_mask"][-1] == 0 and sum(segment["full_loss_mask"]) == len(talk.requests[0].output_ids)


async def test_a_step_that_starts_over_keeps_no_rows_of_before(shared: Running) -> None:
    talk = Conversation(shared, "restarted")
    await talk.say(user("Hi"), reply="Hello.")
    held = Held()
    shared.engine.replies.append(held.reply())
    body = {"model": "m", "messages": [*talk.messages, user("Go on")], "frequency_penalty": 0.5}
    call = asyncio.ensure_future(shared.chat("restarted", body))
    request = await held.reached(shared.engine, 1)
    shared.engine.state.abort(abort_all=True)
    await shared.engine.wait_until(lambda: request.done)
    held.open.set()
    completion(await call)
    _, before, after = shared.engine.requests
    assert after.input_ids == before.input_ids and asked(after) == asked(before)
    assert_rows(await only_segment(shared, "restarted"))


async def test_siblings_share_the_rows_of_what_came_before_them(shared: Running) -> None:
    shared.engine.replies.append(Reply(text="Root."))
    answer = completion(await shared.chat("tree", ask())).choices[0].message.model_dump(exclude_none=True)
    root = shared.engine.requests[0]
    for text in ("left", "right"):
        shared.engine.replies.append(Reply(text=f"Gone {text}."))
        completion(await shared.chat("tree", follow(ask(), answer, f"go {text}")))
    held = len(root.input_ids) + len(root.output_ids) - 1
    assert [asked(request) for request in shared.engine.requests] == [0, held, held]
    segments = await shared.segments("tree")
    assert len(segments) == 2
    for segment in segments:
        assert_rows(segment)


async def test_n_choices_have_rows_of_their_own(shared: Running) -> None:
    shared.engine.replies.extend([Reply(text="A cat."), Reply(text="A small dog.")])
    response = await shared.chat("choices", ask(n=2))
    assert len(completion(response).choices) == 2
    segments = await shared.segments("choices")
    assert len(segments) == 2
    for segment in segments:
        assert_rows(segment)


async def test_a_new_segment_has_all_of_its_rows(shared: Running) -> None:
    talk = Conversation(shared, "rewritten")
    await talk.say(user("Hi"), reply="Hello.")
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    await talk.say(user("Go on"), reply="On.", tools=tools)
    assert [asked(request) for request in talk.requests] == [0, 0]
    segments = await shared.segments("rewritten")
    assert [segment["extra_info"]["segment_reason"] for segment in segments] == ["root", "tools_changed"]
    for segment in segments:
        assert_rows(segment)


@pytest.mark.parametrize("interval", [1, 4], ids=["small chunks", "large chunks"])
async def test_rows_end_where_a_stop_string_cut_the_ids(shared: Running, interval: int) -> None:
    session = f"stop-{interval}"
    shared.engine.replies.append(Reply(text="one two three four five six seven eight", chunk_tokens=interval))
    first = completion(await shared.chat(session, ask(stop=[" four"]))).choices[0]
    assert first.message.content == "one two three"
    shared.engine.replies.append(Reply(text="Nine."))
    answer = first.message.model_dump(exclude_none=True)
    completion(await shared.chat(session, follow(ask(stop=[" four"]), answer, "And?")))
    segment = await only_segment(shared, session)
    assert_rows(segment)
    assert reasons(segment) == []


async def test_a_stop_string_across_a_preemption_keeps_its_rows(shared: Running) -> None:
    """Half of it came before the abort, so that the engine cannot match it: the call is aborted for its rows."""
    held = Held(text="one two three four five six seven eight nine ten eleven twelve", after=4)
    shared.engine.replies.append(held.reply())
    call = asyncio.ensure_future(shared.chat("seam", ask(stop=["four five"])))
    request = await held.reached(shared.engine)
    shared.engine.state.abort(abort_all=True)
    await shared.engine.wait_until(lambda: request.done)
    held.open.set()
    assert completion(await call).choices[0].message.content == "one two three "
    segment = await only_segment(shared, "seam")
    assert_rows(segment)
    assert reasons(segment) == []


async def test_a_resumed_step_has_the_rows_that_left_with_its_agent(shared: Running) -> None:
    held, body = Held(), ask()
    shared.engine.replies.append(held.reply())
    call = asyncio.ensure_future(shared.chat("resumed", body))
    request = await held.reached(shared.engine)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await shared.engine.wait_until(lambda: request.done)
    held.open.set()
    completion(await shared.chat("resumed", body, x_stainless_retry_count="1"))
    assert [asked(one) for one in shared.engine.requests] == [0, 0]
    segment = await only_segment(shared, "resumed")
    assert_rows(segment)
    assert reasons(segment) == []


@pytest.mark.asyncio(loop_scope="function")
async def test_rows_survive_a_restart_of_the_sidecar(qwen3_dir: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    messages: list[dict[str, Any]] = []
    async with engine_for(qwen3_dir, experts=SHAPE) as engine:
        for text in ("One.", "Two.", "Three."):
            async with running_sidecar(engine, state, **SETTINGS) as running:
                await Conversation(running, "s", messages).say(user(f"say {text}"), reply=text)
        starts = [asked(request) for request in engine.requests]
        assert starts == [0, *(len(one.input_ids) + len(one.output_ids) - 1 for one in engine.requests[:-1])]
        async with running_sidecar(engine, state, **SETTINGS) as running:
            assert_rows(await only_segment(running, "s"))
        async with running_sidecar(engine, state) as running:  # what is stored is read with the flag off, too
            [segment] = (await running.post("/trajectory/read", {"session_id": "s"}))["data"]
            assert_rows(segment)


@pytest.mark.asyncio(loop_scope="function")
async def test_without_the_flag_nothing_is_asked_and_nothing_kept(qwen3_dir: Path, tmp_path: Path) -> None:
    async with engine_for(qwen3_dir, experts=SHAPE) as engine, running_sidecar(engine, tmp_path) as running:
        talk = Conversation(running, "off")
        await talk.say(user("Hi"), reply="Hello.")
        await talk.say(user("Go on"), reply="On.")
        assert [asked(request) for request in talk.requests] == [None, None]
        segment = await only_segment(running, "off")
        assert "routed_experts" not in segment
        assert reasons(segment) == []


@pytest.mark.asyncio(loop_scope="function")
async def test_steps_recorded_without_rows_get_them_from_the_next_step(qwen3_dir: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with engine_for(qwen3_dir, experts=SHAPE) as engine:
        async with running_sidecar(engine, state) as running:
            talk = Conversation(running, "s")
            await talk.say(user("Hi"), reply="Hello.")
        async with running_sidecar(engine, state, **SETTINGS) as running:
            talk = Conversation(running, "s", messages=talk.messages)
            await talk.say(user("Go on"), reply="On.")
            assert asked(engine.requests[-1]) == 0
            assert_rows(await only_segment(running, "s"))


@pytest.mark.asyncio(loop_scope="function")
async def test_a_trained_step_without_rows_leaves_its_segment_without_them(qwen3_dir: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with engine_for(qwen3_dir, experts=SHAPE) as engine:
        async with running_sidecar(engine, state, **SETTINGS) as running:
            talk = Conversation(running, "s")
            await talk.say(user("Hi"), reply="Hello.")
        async with running_sidecar(engine, state) as running:
            talk = Conversation(running, "s", messages=talk.messages)
            await talk.say(user("Go on"), reply="On.")
            assert "routed_experts" not in await only_segment(running, "s")


@pytest.mark.parametrize("experts", [256, 300, None])
@pytest.mark.asyncio(loop_scope="function")
async def test_ids_are_kept_as_narrow_as_the_experts_allow(
    qwen3_dir: Path, tmp_path: Path, experts: int | None
) -> None:
    shape = (2, 4, experts or 300)
    given: dict[str, Any] = {"layers": 2, "topk": 4, **({"experts": experts} if experts else {})}
    settings = {**SETTINGS, "routing_replay_shape": given}
    engine: FakeSGLang
    async with (
        engine_for(qwen3_dir, experts=shape) as engine,
        running_sidecar(engine, tmp_path, **settings) as running,
    ):
        talk = Conversation(running, "wide")
        await talk.say(user("Hi " * 60), reply="Hello.")
        segment = await only_segment(running, "wide")
        assert_rows(segment, shape)
        assert rows_of(segment).dtype == ("uint8" if experts == 256 else "uint16")


async def test_no_rows_stay_in_memory_once_their_step_is_stored(shared: Running) -> None:
    """Hundreds of bytes for each token: a thousand open sessions could not hold them."""
    talk = Conversation(shared, "light")
    held = Held()
    shared.engine.replies.append(held.reply())
    call = asyncio.ensure_future(shared.chat("light", ask()))
    await held.reached(shared.engine)
    session = shared.sidecar.registry._sessions["light"]
    [run] = session.runs.values()
    assert run.generation.rows is not None
    held.open.set()
    completion(await call)
    assert run.generation.rows is None
    [node] = session.trajectory
    stored = node.record.routed_rows
    assert stored is not None and stored.end == node.token_count - 1
    assert_rows(await only_segment(shared, talk.session))
