"""Pause and resume around a weight update: the agent sees one slow call, the trainer exact ids and versions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from sidecar.store import open_store
from sidecar.store.protocol import PauseRow
from tests.fake_sglang import FakeSGLang, RecordedRequest, Reply
from tests.support.chat import Held, ask, completion, joined, payloads, streaming, tool, until, until_states
from tests.support.running import Running, engine_for, running_sidecar

pytestmark = pytest.mark.asyncio(loop_scope="module")
BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
SETTINGS = {"heartbeat_interval": 0.05}


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def resumed(module_sidecar: Running) -> AsyncIterator[None]:
    """No test leaves a pause to the next."""
    yield
    await module_sidecar.post("/v1/rollout/resume")


async def pause(running: Running, status: int = 200, **fields: Any) -> dict[str, Any]:
    return await running.post("/v1/rollout/pause", fields, status)


async def resume(running: Running, status: int = 200, **fields: Any) -> dict[str, Any]:
    return await running.post("/v1/rollout/resume", fields, status)


async def state(running: Running) -> dict[str, Any]:
    response = await running.control.get("/v1/rollout/pause_state")
    assert response.status_code == 200
    parsed: dict[str, Any] = response.json()
    return parsed


async def update_weights(engine: FakeSGLang, version: str) -> None:
    """As a trainer does it: by the engine's own endpoint, which aborts what runs."""
    async with httpx.AsyncClient(base_url=engine.url) as client:
        response = await client.post("/update_weight_version", json={"new_version": version})
        assert response.status_code == 200


def text_of(response: httpx.Response) -> str:
    if response.headers["content-type"].startswith("text/event-stream"):
        return joined(payloads(response.text))
    return completion(response).choices[0].message.content or ""


def sampled_versions(segment: dict[str, Any]) -> list[str]:
    pairs = zip(segment["full_versions"], segment["full_loss_mask"], strict=True)
    return [version for version, trained in pairs if trained]


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
    assert sum(len(request.output_ids) for request in shared.engine.requests) == len(
        shared.engine.vocabulary.encode("ab")
    ) + 1
    assert first.done


# The protocol.


async def test_a_second_pause_is_already_paused_and_renews_the_first(shared: Running) -> None:
    first = await pause(shared, reason="a", lease_seconds=5)
    [before] = (await state(shared))["pauses"]
    second = await pause(shared, reason="b", lease_seconds=50)
    assert (second["status"], second["pause_id"]) == ("already_paused", first["pause_id"])
    [after] = (await state(shared))["pauses"]
    assert after["lease_expires_at"] > before["lease_expires_at"] + 40
    third = await pause(shared, pause_id=first["pause_id"], lease_seconds=500)
    assert (third["status"], third["pause_id"]) == ("already_paused", first["pause_id"])
    [renewed] = (await state(shared))["pauses"]
    assert renewed["lease_expires_at"] > after["lease_expires_at"] + 400
    assert (renewed["scope"], renewed["mode"], renewed["reason"]) == ("all", "abort", "a")


async def test_two_pauses_at_once_are_one(shared: Running) -> None:
    first, second = await asyncio.gather(pause(shared), pause(shared))
    assert first["pause_id"] == second["pause_id"]
    assert {first["status"], second["status"]} == {"paused", "already_paused"}


async def test_an_unknown_pause_id_is_409_and_opens_no_pause(shared: Running) -> None:
    for route in (pause, resume):
        error = (await route(shared, 409, pause_id="nonsense"))["error"]
        assert error["code"] == "pause_expired"
        assert "nonsense" in error["message"]
    assert not (await state(shared))["paused"]
    lifted = await pause(shared)
    await resume(shared, pause_id=lifted["pause_id"])
    assert (await pause(shared, 409, pause_id=lifted["pause_id"]))["error"]["code"] == "pause_expired"
    assert (await resume(shared, 409, pause_id=lifted["pause_id"]))["error"]["code"] == "pause_expired"
    assert not (await state(shared))["paused"]


async def test_a_wrong_id_does_not_lift_another_pause(shared: Running) -> None:
    await pause(shared)
    await resume(shared, 409, pause_id="nonsense")
    assert (await state(shared))["paused"]


async def test_resuming_what_runs_changes_nothing(shared: Running) -> None:
    before = (await state(shared))["rollout_epoch"]
    assert (await resume(shared))["status"] == "already_running"
    assert (await state(shared))["rollout_epoch"] == before
    await pause(shared)
    assert (await resume(shared))["rollout_epoch"] == before + 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"mode": "hold"}, "mode"),
        ({"mode": 5}, "mode"),
        ({"session_id": "s"}, "session_id"),
        ({"instance_id": "i"}, "instance_id"),
        ({"pause_id": 5}, "pause_id"),
        ({"reason": 5}, "reason"),
        ({"timeout_seconds": "1"}, "timeout_seconds"),
        ({"timeout_seconds": -1}, "timeout_seconds"),
        ({"lease_seconds": 0}, "lease_seconds"),
        ({"lease": 5}, "lease"),
    ],
)
async def test_bad_fields_of_pause_are_named_and_nothing_is_paused(
    shared: Running, fields: dict[str, Any], param: str
) -> None:
    assert (await pause(shared, 400, **fields))["error"]["param"] == param
    assert not (await state(shared))["paused"]


async def test_a_version_that_the_engine_does_not_confirm_is_logged_and_stamped_on_nothing(
    shared: Running, caplog: pytest.LogCaptureFixture
) -> None:
    shared.engine.set_weight_version("7")
    await pause(shared)
    assert (await resume(shared, version="8"))["version"] == "7"
    assert "resumed with version 8, but the engine says 7" in caplog.text
    shared.engine.replies.append(Reply(text="ok"))
    completion(await shared.chat("stamped", ask()))
    [segment] = await shared.segments("stamped")
    assert set(sampled_versions(segment)) == {"7"}


async def test_a_lease_that_runs_out_opens_the_gate_and_says_so(
    shared: Running, caplog: pytest.LogCaptureFixture
) -> None:
    held = Held()
    shared.engine.replies.append(held.reply())
    call = asyncio.ensure_future(shared.chat("lease", ask()))
    await held.reached(shared.engine)
    paused = await pause(shared, lease_seconds=0.3, reason="update")
    assert text_of(await call) == held.text  # and nobody resumed
    assert not (await state(shared))["paused"]
    assert f"pause ran out without a resume: pause_id={paused['pause_id']} reason=update" in caplog.text
    assert (await resume(shared, 409, pause_id=paused["pause_id"]))["error"]["code"] == "pause_expired"


async def test_a_renewed_lease_does_not_run_out(shared: Running) -> None:
    paused = await pause(shared, lease_seconds=0.2)
    ends_at = time.monotonic() + 0.2
    await pause(shared, pause_id=paused["pause_id"], lease_seconds=60)
    while time.monotonic() < ends_at + 0.1:
        await asyncio.sleep(0.05)
    assert (await state(shared))["paused"]


async def test_resuming_with_the_engine_down_is_503_and_stays_paused(shared: Running) -> None:
    held = Held()
    shared.engine.replies.append(held.reply())
    call = asyncio.ensure_future(shared.chat("engine-down", ask()))
    await held.reached(shared.engine)
    paused = await pause(shared)
    await shared.engine.down()
    response = await shared.control.post("/v1/rollout/resume", json={"pause_id": paused["pause_id"]})
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "backend_not_ready"
    assert response.headers["retry-after"] == "1"
    assert (await state(shared))["paused"]
    await shared.engine.up()
    assert (await resume(shared, pause_id=paused["pause_id"]))["status"] == "resumed"
    assert text_of(await call) == held.text


# Restarts.


@asynccontextmanager
async def restarted(engine: FakeSGLang, tmp_path: Path, **settings: Any) -> AsyncIterator[Running]:
    async with running_sidecar(engine, tmp_path / "state", **settings) as running:
        yield running


async def test_a_pause_survives_a_restart_of_the_sidecar(qwen3_dir: Path, tmp_path: Path) -> None:
    async with engine_for(qwen3_dir) as engine:
        async with restarted(engine, tmp_path) as running:
            paused = await pause(running, reason="update")
        async with restarted(engine, tmp_path) as running:
            now = await state(running)
            assert [one["pause_id"] for one in now["pauses"]] == [paused["pause_id"]]
            engine.replies.append(Reply(text="ok"))
            call = asyncio.ensure_future(running.chat("s", ask()))
            await until_states(running, "s", "running")
            assert not engine.requests
            assert (await pause(running))["status"] == "already_paused"
            await resume(running, pause_id=paused["pause_id"])
            assert text_of(await call) == "ok"
        async with restarted(engine, tmp_path) as running:
            assert not (await state(running))["paused"]


async def test_a_pause_whose_lease_ran_out_while_nobody_ran_is_over(qwen3_dir: Path, tmp_path: Path) -> None:
    async with engine_for(qwen3_dir) as engine:
        async with restarted(engine, tmp_path) as running:
            await pause(running, lease_seconds=0.001)
        async with restarted(engine, tmp_path) as running:
            assert not (await state(running))["paused"]
            engine.replies.append(Reply(text="ok"))
            assert text_of(await running.chat("s", ask())) == "ok"


async def test_a_pause_in_another_mode_is_a_conflict_that_renews_nothing(qwen3_dir: Path, tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'state' / 'tito.db'}")
    await store.start()
    row = PauseRow("drained", "all", "drain", None, time.time() + 600)  # by a version that knows more modes
    await store.save_pause(row)
    await store.close()
    async with engine_for(qwen3_dir) as engine, restarted(engine, tmp_path) as running:
        for fields in ({}, {"pause_id": "drained"}):
            error = (await pause(running, 409, **fields, lease_seconds=5000))["error"]
            assert error["code"] == "pause_conflict"
            assert "in mode drain" in error["message"]
        [still] = (await state(running))["pauses"]
        assert still["lease_expires_at"] == row.lease_expires_at
        assert (await resume(running))["status"] == "resumed"
