"""What an agent is told when the engine fails: status, `Retry-After`, envelope; nothing of it is stored."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.fake_sglang import FakeSGLang, Fault, Reply, faults
from tests.support.chat import Held, ask, completion, follow, joined, payloads, streaming, until_states
from tests.support.running import Running, engine_for, running_sidecar

pytestmark = pytest.mark.asyncio(loop_scope="module")
SETTINGS = {"engine_retries": 1, "max_stalled_resumes": 1}
ENGINE = {"context_length": 400}

BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
OVERFLOWS = [
    "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
    "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested 5000.",
    "Input length (5000 tokens) exceeds the maximum allowed length (4096 tokens). Use a shorter input.",
]


async def failed(shared: Running, session: str, fault: Fault, *, times: int = 1, stream: bool = False) -> Any:
    """The response to a call whose engine request meets `fault`; the session has one good turn before it and is
    checked to be as it was, and to go on exactly."""
    shared.engine.replies.append(Reply(text="Hello."))
    body = ask(max_tokens=50)
    answer = completion(await shared.chat(session, body)).choices[0].message.model_dump(exclude_none=True)
    before = await shared.view(session)
    shared.engine.fail_next(fault, times)
    second = follow(body, answer, "More?")
    response = await shared.chat(session, {**second, "stream": stream})
    assert await shared.view(session) == before
    shared.engine.replies.clear()
    shared.engine.replies.append(Reply(text="Good again."))
    assert completion(await shared.chat(session, second)).choices[0].message.content
    shared.engine.assert_i1(session=session)
    return response


@BOTH_WAYS
async def test_an_engine_that_is_down_is_503_with_retry_after(shared: Running, stream: bool) -> None:
    await shared.engine.down()
    try:
        response = await shared.chat("down", ask(stream=stream))
    finally:
        await shared.engine.up()
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "engine_unavailable")
    assert (await shared.view("down"))["steps"] == []


async def test_the_sdk_sees_an_internal_server_error_and_would_retry(shared: Running) -> None:
    await shared.engine.down()
    try:
        async with shared.agent("down-sdk") as agent:
            with pytest.raises(openai.InternalServerError) as raised:
                await agent.chat.completions.create(**ask())
    finally:
        await shared.engine.up()
    assert raised.value.status_code == 503
    assert raised.value.code == "engine_unavailable"


@BOTH_WAYS
@pytest.mark.parametrize(
    ("name", "fault", "status"),
    [
        ("http-500", faults.HttpError(500), 503),
        ("html-502", faults.HtmlBody(502), 503),
        ("html-200", faults.HtmlBody(200), 502),
        ("fewer-logprobs", faults.LogprobCount(-1), 502),
        ("more-logprobs", faults.LogprobCount(1), 502),
        ("nan", faults.BadLogprob(), 502),
        ("null", faults.BadLogprob(None), 502),
        ("positive", faults.BadLogprob(0.5), 502),
        ("count", faults.CompletionTokens(1), 502),
        ("garbage", faults.GarbageChunk(), 502),
        ("no-stream", faults.HttpError(200, {"text": "hello"}), 502),
        ("abort-500", faults.EngineAbort(0, 500), 503),
        ("abort-no-code", faults.EngineAbort(0, None, "OutOfMemory"), 503),
        ("stream-500", faults.StreamError(0, "broken", 500), 503),
    ],
)
async def test_a_broken_engine_reply_fails_the_call_and_stores_nothing(
    shared: Running, name: str, fault: Fault, status: int, stream: bool
) -> None:
    response = await failed(shared, f"{name}-{stream}", fault, stream=stream)
    if response.status_code == 200:  # headers had left with the first token
        assert stream
        error = payloads(response.text)[-1]["error"]
    else:
        assert response.status_code == status
        error = response.json()["error"]
    assert error["type"] == "server_error"
    assert error["code"] == ("bad_engine_reply" if status == 502 else "engine_unavailable")
    if status == 503 and response.status_code == 503:
        assert response.headers["retry-after"] == "1"


@pytest.mark.parametrize("status", [400, 404, 422, 429])
async def test_the_engines_own_4xx_is_passed_on_with_its_words(shared: Running, status: int) -> None:
    fault = faults.HttpError(status, {"error": {"message": "no such adapter"}})
    response = await failed(shared, f"passed-{status}", fault)
    assert response.status_code == status
    assert response.json()["error"]["message"] == "the engine refuses the request: no such adapter"
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "body",
    [{"error": "a string"}, {"object": "error", "message": "a string"}, {"detail": "a string"}],
    ids=["contract gate", "validation", "framework"],
)
async def test_all_of_the_engines_error_shapes_are_read(shared: Running, body: dict[str, Any]) -> None:
    response = await failed(shared, f"shape-{next(iter(body))}", faults.HttpError(400, body))
    assert response.json()["error"]["message"] == "the engine refuses the request: a string"


@BOTH_WAYS
async def test_an_error_that_the_engine_delivers_as_an_abort_is_no_preemption(
    shared: Running, stream: bool
) -> None:
    fault = faults.EngineAbort(0, 400, "BadRequestError", "bad grammar")
    response = await failed(shared, f"abort-400-{stream}", fault, stream=stream)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "the engine refuses the request: bad grammar"


async def test_an_abort_with_503_keeps_the_partial_ids_and_goes_on(shared: Running) -> None:
    shared.engine.replies.append(
        Reply(text="one two three four five", chunk_tokens=1, faults=faults.EngineAbort(2, 503, "Busy", "busy"))
    )
    got = completion(await shared.chat("busy", ask()))
    assert got.choices[0].message.content == "one two three four five"
    first, second = shared.engine.requests
    assert second.input_ids == first.input_ids + first.output_ids
    assert len(first.output_ids) == 2


@BOTH_WAYS
async def test_an_engine_that_makes_no_progress_is_503_and_the_retry_goes_on_from_the_ids(
    shared: Running, stream: bool
) -> None:
    session, held = f"stalled-{stream}", Held()
    shared.engine.replies.append(held.reply())
    body = ask(stream=stream)
    call = asyncio.ensure_future(shared.chat(session, body))
    first = await held.reached(shared.engine)
    shared.engine.fail_next(faults.EngineAbort(0, None, None, "Aborted"), 2)
    shared.engine.state.abort(abort_all=True)
    response = await call
    if stream:
        error = payloads(response.text)[-1]["error"]
    else:
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        error = response.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "engine_stalled")
    assert "without a new token" in error["message"]
    [step] = (await until_states(shared, session, "detached"))["steps"]
    assert step["output_tokens"] == held.after

    again = await shared.chat(session, body, x_stainless_retry_count="1")
    assert again.headers["x-step-id"] == step["step_id"]
    text = joined(payloads(again.text)) if stream else completion(again).choices[0].message.content
    assert text == held.text
    assert shared.engine.requests[-1].input_ids == first.input_ids + first.output_ids
    [step] = (await shared.view(session))["steps"]
    assert (step["state"], step["delivered"]) == ("committed", True)


@BOTH_WAYS
async def test_an_error_event_in_the_engines_stream_is_a_real_status_before_the_first_token(
    shared: Running, stream: bool
) -> None:
    fault = faults.StreamError(0, "unknown field `x`", 400)
    response = await failed(shared, f"event-{stream}", fault, stream=stream)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "the engine refuses the request: unknown field `x`"


async def test_an_error_after_the_first_token_is_an_error_event_and_the_stream_ends(shared: Running) -> None:
    shared.engine.replies.append(
        Reply(text="one two three four", chunk_tokens=1, faults=faults.StreamError(2, "broke", 500))
    )
    async with streaming(shared, "late", ask()) as stream:
        assert stream.response.status_code == 200
        events = await stream.rest()
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[-1]["error"]["code"] == "engine_unavailable"
    assert "[DONE]" not in events
    assert (await shared.view("late"))["steps"] == []


async def test_the_sdk_raises_for_an_error_event(shared: Running) -> None:
    shared.engine.replies.append(
        Reply(text="one two three four", chunk_tokens=1, faults=faults.StreamError(2, "broke", 500))
    )
    async with shared.agent("late-sdk") as agent:
        stream = await agent.chat.completions.create(**ask(stream=True))
        with pytest.raises(openai.APIError, match="broke"):
            async for _ in stream:
                pass


@pytest.mark.parametrize("text", OVERFLOWS)
async def test_the_engines_overflow_wordings_become_context_length_exceeded(shared: Running, text: str) -> None:
    shared.engine.fail_next(faults.HttpError(400, {"error": {"message": text}}))
    async with shared.agent("overflow") as agent:
        with pytest.raises(openai.BadRequestError) as raised:
            await agent.chat.completions.create(**ask())
    assert raised.value.code == "context_length_exceeded"
    assert raised.value.type == "invalid_request_error"
    assert "maximum context length" in raised.value.message
    assert text in raised.value.message


async def test_an_overflow_in_the_engines_stream_is_found_too(shared: Running) -> None:
    shared.engine.fail_next(faults.StreamError(0, OVERFLOWS[0], 400))
    response = await shared.chat("overflow-event", ask(stream=True))
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


@BOTH_WAYS
async def test_a_prompt_that_fills_the_window_is_refused_before_the_engine(shared: Running, stream: bool) -> None:
    async with shared.agent("full") as agent:
        with pytest.raises(openai.BadRequestError) as raised:
            await agent.chat.completions.create(**ask("many words " * 250, stream=stream))
    error = raised.value
    assert (error.code, error.type) == ("context_length_exceeded", "invalid_request_error")
    assert error.message.count("This model's maximum context length is 400 tokens. However, your messages resulted")
    assert not shared.engine.requests


async def test_a_budget_beyond_the_window_is_clamped_and_told(shared: Running) -> None:
    shared.engine.replies.append(Reply(text="ok"))
    response = await shared.chat("clamped", ask(max_tokens=100_000))
    [request] = shared.engine.requests
    room = 400 - len(request.input_ids)
    assert request.sampling_params["max_new_tokens"] == room
    assert response.headers["x-tito-max-tokens"] == str(room)


async def test_a_key_that_the_engine_refuses_is_no_401_for_the_agent(qwen3_dir: Path, tmp_path: Path) -> None:
    async with engine_for(qwen3_dir, api_key="k") as engine:
        await engine.down()  # a wrong key is refused at start-up, if the engine is there to refuse it
        async with running_sidecar(engine, tmp_path, tokenizer=str(qwen3_dir), context_window=400) as running:
            await engine.up()
            await check_refused_key(running)


async def check_refused_key(running: Running) -> None:
    response = await running.chat("s", ask())
    assert response.status_code == 502
    assert response.headers["x-should-retry"] == "false"
    assert "--engine-api-key" in response.json()["error"]["message"]
    assert "Unauthorized" in response.json()["error"]["message"]
    assert (await running.view("s"))["steps"] == []


async def test_both_engine_keys_reach_the_engine_where_they_belong(qwen3_dir: Path, tmp_path: Path) -> None:
    async with (
        engine_for(qwen3_dir, api_key="k", admin_key="a") as engine,
        running_sidecar(engine, tmp_path, engine_api_key="k", engine_admin_key="a") as running,
    ):
        await one_call_with_a_pause(running, engine)


async def one_call_with_a_pause(running: Running, engine: FakeSGLang) -> None:
    engine.replies.append(Reply(text="one two three four five six", chunk_tokens=1, delay=0.05))
    async with streaming(running, "s", ask()) as stream:
        await stream.until_text()
        paused = await running.post("/v1/rollout/pause")
        assert paused["quiesced"]
        assert not paused["abort_failed_request_ids"]
        await running.post("/v1/rollout/resume", {"pause_id": paused["pause_id"]})
        assert (await stream.rest())[-1] == "[DONE]"
    # `/workers` is a router's, and how one is told from a server
    assert {call.status for call in engine.calls if call.path != "/workers"} == {200}


async def test_a_413_for_overflow_if_the_operator_wants_it(qwen3_dir: Path, tmp_path: Path) -> None:
    async with (
        engine_for(qwen3_dir, context_length=100) as engine,
        running_sidecar(engine, tmp_path, overflow_status=413) as running,
    ):
        response = await running.chat("s", ask("many words " * 100))
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("version", ["0.5.9", "0.5.11", "0.5.18", "0.5.23"])
@pytest.mark.parametrize("incremental", [False, True])
async def test_servers_of_all_versions_are_read_alike(
    qwen3_dir: Path, tmp_path: Path, version: str, incremental: bool
) -> None:
    async with (
        engine_for(qwen3_dir, version=version, incremental=incremental) as engine,
        running_sidecar(engine, tmp_path) as running,
    ):
        engine.replies.append(Reply(text="one two three four five six"))
        response = await running.chat("s", ask(stream=True))
        assert joined(payloads(response.text)) == "one two three four five six"
        [request] = engine.requests
        assert (request.sampling_params["stream_interval"] == 1) is incremental
        [segment] = await running.segments("s")
        assert segment["tokens"] == request.input_ids + request.output_ids


@BOTH_WAYS
async def test_a_full_queue_is_waited_for_and_then_a_503(qwen3_dir: Path, tmp_path: Path, stream: bool) -> None:
    async with (
        engine_for(qwen3_dir, max_running_requests=1, max_queued_requests=0) as engine,
        running_sidecar(engine, tmp_path, engine_retries=1) as running,
    ):
        held = Held()
        engine.replies.append(held.reply())
        first = asyncio.ensure_future(running.chat("first", ask()))
        await held.reached(engine)
        refused = await running.chat("second", ask(stream=stream))
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert "The request queue is full." in refused.json()["error"]["message"]
        assert len(engine.requests) == 3  # tried once more
        held.open.set()
        assert completion(await first).choices[0].message.content == held.text
        assert (await running.view("second"))["steps"] == []
