"""Streaming is real, and a streamed reply is the same reply: text, calls, usage, logprobs, signs of life."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.fake_sglang import Reply, faults
from tests.support.chat import Held, Stream, ask, call_text, completion, joined, payloads, streaming, tool
from tests.support.running import Running, engine_for, running_sidecar

pytestmark = pytest.mark.asyncio(loop_scope="module")
SETTINGS = {"heartbeat_interval": 0.05}
HEARTBEAT = ": heartbeat"

REPLIES = {
    "plain": "Hello, world.",
    "reasoning": "<think>\nLet me think.\n</think>\n\nDone.",
    "no end of reasoning": "<think>\nLet me think",
    "a call": call_text(at=1),
    "text and two calls": f"I look twice.\n{call_text(at=1)}\n{call_text('peek', text='a "b" é🎉')}",
    "everything": f"<think>\nhm\n</think>\n\nLook:\n{call_text(deep={'a': [1, {}]})}",
    "broken call": '<tool_call>\n{"name": "look", "arguments": {oops}\n</tool_call> then text',
    "cut call": '<tool_call>\n{"name": "look"',
    "split characters": "naïve 🎉🏳️‍🌈 日本語 ​x",
    "white space": "  indented\n\n  more  \n",
    "empty": "",
}


@pytest.mark.parametrize("name", REPLIES)
@pytest.mark.parametrize("chunk_tokens", [1, 3])
async def test_the_joined_stream_is_the_reply_that_is_not_streamed(
    shared: Running, name: str, chunk_tokens: int
) -> None:
    shared.engine.replies.extend([Reply(text=REPLIES[name], chunk_tokens=chunk_tokens)] * 2)
    session, body = f"same-{name}-{chunk_tokens}", ask(tools=[tool(), tool("peek")])
    whole = completion(await shared.chat(session, body))
    response = await shared.chat(session, {**body, "stream": True, "stream_options": {"include_usage": True}})
    chunks = payloads(response.text)
    message = whole.choices[0].message.model_dump(exclude_none=True)
    assert joined(chunks) == (message.get("content") or "")
    assert joined(chunks, "reasoning_content") == message.get("reasoning_content", "")
    assert [strip_id(call) for call in streamed_calls(chunks)] == [
        strip_id(call) for call in message.get("tool_calls", [])
    ]
    assert chunks[-3]["choices"][0]["finish_reason"] == whole.choices[0].finish_reason
    assert chunks[-2]["usage"] == whole.usage.model_dump(exclude_none=True)


def streamed_calls(chunks: list[Any]) -> list[dict[str, Any]]:
    """The calls of a stream, put together as clients do: by index."""
    calls: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk["choices"] if isinstance(chunk, dict) else ():
            for delta in choice["delta"].get("tool_calls") or ():
                call = calls.setdefault(delta["index"], {"function": {"arguments": ""}})
                call["function"]["arguments"] += delta["function"].pop("arguments", "")
                call["function"] |= delta["function"]
                call |= {key: delta[key] for key in ("id", "type") if key in delta}
    return [calls[index] for index in sorted(calls)]


def strip_id(call: dict[str, Any]) -> dict[str, Any]:
    assert call["id"]
    return {key: value for key, value in call.items() if key != "id"}


async def test_the_first_text_arrives_while_the_engine_still_generates(shared: Running) -> None:
    held = Held()
    shared.engine.replies.append(held.reply())
    async with streaming(shared, "real", ask()) as stream:
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        assert stream.response.headers["x-accel-buffering"] == "no"
        first = await stream.chunk()
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        begun = await stream.until_text()
        assert held.text.startswith(begun)
        [request] = shared.engine.requests
        assert not request.done
        held.open.set()
        rest = await stream.rest()
    assert begun + joined(rest) == held.text
    assert rest[-1] == "[DONE]"


async def test_every_chunk_is_one_that_the_sdk_knows(shared: Running) -> None:
    shared.engine.replies.append(Reply(text=REPLIES["everything"]))
    body = ask(tools=[tool()], stream=True, stream_options={"include_usage": True}, logprobs=True)
    response = await shared.chat("typed", body)
    *chunks, end = payloads(response.text)
    assert end == "[DONE]"
    parsed = [ChatCompletionChunk.model_validate(chunk, strict=True) for chunk in chunks]
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in parsed}) == 1
    assert parsed[0].id.startswith("chatcmpl-")
    assert parsed[0].model == "m"


async def test_the_sdks_own_accumulator_reads_the_stream(shared: Running) -> None:
    shared.engine.replies.append(Reply(text=REPLIES["text and two calls"]))
    async with (
        shared.agent("accumulated") as agent,
        agent.chat.completions.stream(**ask(tools=[tool()])) as stream,
    ):
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == "I look twice."
    assert [call.function.name for call in final.choices[0].message.tool_calls or ()] == ["look", "peek"]


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
async def test_without_include_usage_no_chunk_has_usage(shared: Running, options: Any) -> None:
    shared.engine.replies.append(Reply(text="Hi."))
    response = await shared.chat("no-usage", ask(stream=True, stream_options=options))
    *chunks, end = payloads(response.text)
    assert end == "[DONE]"
    assert all(chunk["choices"] for chunk in chunks)
    assert not any(chunk.get("usage") for chunk in chunks)


async def test_the_usage_chunk_comes_last_without_choices_and_counts_the_engines_ids(shared: Running) -> None:
    shared.engine.replies.append(Reply(text="Hi."))
    response = await shared.chat("usage", ask(stream=True, stream_options={"include_usage": True}))
    *chunks, usage, end = payloads(response.text)
    [request] = shared.engine.requests
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": len(request.input_ids),
        "completion_tokens": len(request.output_ids),
        "total_tokens": len(request.input_ids) + len(request.output_ids),
    }
    assert end == "[DONE]"
    assert not any(chunk.get("usage") for chunk in chunks)


async def test_a_call_is_named_by_its_first_delta_and_text_before_it_is_kept(shared: Running) -> None:
    shared.engine.replies.append(Reply(text=REPLIES["text and two calls"]))
    response = await shared.chat("calls", ask(tools=[tool()], stream=True))
    chunks = payloads(response.text)
    deltas = [
        delta
        for chunk in chunks[:-1]
        for choice in chunk["choices"]
        for delta in choice["delta"].get("tool_calls") or ()
    ]
    assert joined(chunks) == "I look twice."
    firsts = {delta["index"]: delta for delta in reversed(deltas)}
    assert sorted(firsts) == [0, 1]
    assert all(delta["id"] and delta["type"] == "function" for delta in firsts.values())
    assert [firsts[index]["function"]["name"] for index in (0, 1)] == ["look", "peek"]
    assert firsts[0]["id"] != firsts[1]["id"]
    assert json.loads(streamed_calls(chunks)[1]["function"]["arguments"]) == {"text": 'a "b" é🎉'}
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"


# Signs of life.


async def test_comments_go_out_while_the_engine_is_silent_and_clients_pass_over_them(shared: Running) -> None:
    queued = asyncio.Event()
    shared.engine.replies.append(Reply(text="late", queue=queued))
    async with streaming(shared, "silent", ask()) as stream:
        assert [await stream.event() for _ in range(3)] == [HEARTBEAT] * 3
        queued.set()
        assert joined(await stream.rest()) == "late"


async def test_comments_go_out_between_tokens(shared: Running) -> None:
    held = Held()
    shared.engine.replies.append(held.reply())
    async with streaming(shared, "stuck", ask()) as stream:
        await stream.until_text()
        await until_heartbeat(stream)
        held.open.set()
        assert (await stream.rest())[-1] == "[DONE]"


@pytest.mark.parametrize(
    "fields",
    [{"tools": [tool()]}, {"frequency_penalty": 0.5}],
    ids=["a call that is not complete", "a reply that may start over"],
)
async def test_comments_go_out_while_tokens_come_that_cannot_be_shown(
    shared: Running, fields: dict[str, Any]
) -> None:
    text = call_text(text="word " * 30)
    shared.engine.replies.append(Reply(text=text, delay=0.02, chunk_tokens=1))
    async with streaming(shared, f"hidden-{next(iter(fields))}", ask(**fields)) as stream:
        if "frequency_penalty" in fields:  # heartbeats only: until it is complete its failure may have a status
            assert await stream.event() == HEARTBEAT
        await until_heartbeat(stream)
        [request] = shared.engine.requests
        assert request.output_ids
        assert not request.done
        assert (await stream.rest())[-1] == "[DONE]"


async def until_heartbeat(stream: Stream) -> None:
    while (event := await stream.event()) != HEARTBEAT:
        assert 'finish_reason":"' not in event


async def test_a_late_json_reply_is_preceded_by_white_space(shared: Running) -> None:
    held = Held()
    shared.engine.replies.append(held.reply())
    url = "/sessions/late-json/v1/chat/completions"
    async with shared.data.stream("POST", url, json=ask()) as response:
        assert response.headers["transfer-encoding"] == "chunked"
        assert response.headers["content-type"] == "application/json"
        assert response.headers["x-session-id"] == "late-json"
        body = response.aiter_text()
        assert (await anext(body)).strip() == ""
        assert not shared.engine.requests[0].done
        held.open.set()
        text = "".join([part async for part in body])
    parsed = ChatCompletion.model_validate(json.loads(text), strict=True)
    assert parsed.choices[0].message.content == held.text


async def test_the_sdk_reads_a_late_json_reply(shared: Running) -> None:
    held = Held()
    shared.engine.replies.append(held.reply())
    async with shared.agent("late-sdk", timeout=30) as agent:
        call = asyncio.ensure_future(agent.chat.completions.create(**ask()))
        await held.reached(shared.engine)
        await asyncio.sleep(0.3)  # more than four heartbeats: white space has left
        held.open.set()
        assert (await call).choices[0].message.content == held.text


async def test_white_space_can_be_turned_off(qwen3_dir: Path, tmp_path: Path) -> None:
    async with (
        engine_for(qwen3_dir) as engine,
        running_sidecar(engine, tmp_path, heartbeat_interval=0.01, json_keepalive="off") as running,
    ):
        held = Held()
        engine.replies.append(held.reply())
        call = asyncio.ensure_future(running.chat("s", ask()))
        await held.reached(engine)
        await asyncio.sleep(0.1)  # more than four heartbeats
        held.open.set()
        response = await call
        assert completion(response).choices[0].message.content == held.text
        assert response.content.startswith(b"{")
        assert int(response.headers["content-length"]) == len(response.content)


async def test_a_long_reply_that_is_decoded_in_slices_is_whole(shared: Running) -> None:
    text = "🫠" * 3000  # the slices end inside characters
    shared.engine.replies.append(Reply(text=text, chunk_tokens=2000))
    response = await shared.chat("slices", ask())
    assert completion(response).choices[0].message.content == text
    [request] = shared.engine.requests
    assert len(request.output_ids) > 2 * 4096


async def test_a_prompt_json_reply_has_its_length(shared: Running) -> None:
    shared.engine.replies.append(Reply(text="quick"))
    response = await shared.chat("prompt-json", ask())
    assert int(response.headers["content-length"]) == len(response.content)


async def test_a_late_json_reply_that_fails_is_no_valid_json(shared: Running) -> None:
    held = Held(after=1)
    shared.engine.replies.append(held.reply(faults=faults.StreamError(4, "broke", 500)))
    async with shared.agent("late-failure") as agent:
        call = asyncio.ensure_future(agent.chat.completions.create(**ask()))
        await held.reached(shared.engine)
        await asyncio.sleep(0.3)
        held.open.set()
        with pytest.raises(openai.APIConnectionError):
            await call
    assert (await shared.view("late-failure"))["steps"] == []


# Logprobs, stop strings, siblings.


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_are_the_engines_own_one_per_sampled_token(shared: Running, stream: bool) -> None:
    shared.engine.replies.append(Reply(text="Hi 🎉."))
    response = await shared.chat(f"logprobs-{stream}", ask(logprobs=True, stream=stream))
    choices = payloads(response.text)[-2]["choices"] if stream else response.json()["choices"]
    entries = choices[0]["logprobs"]["content"]
    [request] = shared.engine.requests
    assert [entry["logprob"] for entry in entries] == request.output_logprobs
    assert all(bytes(entry["bytes"]).decode() == entry["token"] for entry in entries)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", ["seven", ["x", "five six", "seven"], ["n eigh"]])
async def test_text_ends_before_the_first_stop_string(shared: Running, stop: Any, stream: bool) -> None:
    text = Held().text
    shared.engine.replies.append(Reply(text=text, chunk_tokens=1))
    body = ask(stop=stop, stream=stream)
    response = await shared.chat(f"stop-{stop}-{stream}".replace("/", ""), body)
    got = joined(payloads(response.text)) if stream else completion(response).choices[0].message.content
    first = min(text.find(one) for one in ([stop] if isinstance(stop, str) else stop) if one in text)
    assert got == text[:first]
    finish = payloads(response.text)[-2] if stream else response.json()
    assert finish["choices"][0]["finish_reason"] == "stop"
    [request] = shared.engine.requests
    assert shared.engine.vocabulary.decode(request.output_ids, skip_special_tokens=True).startswith(got or "")


async def test_two_choices_are_two_sibling_steps(shared: Running) -> None:
    shared.engine.replies.extend([Reply(text="first"), Reply(text="second one")])
    response = await shared.chat("two", ask(n=2))
    whole = completion(response)
    assert sorted(choice.message.content or "" for choice in whole.choices) == ["first", "second one"]
    assert [choice.index for choice in whole.choices] == [0, 1]
    steps = (await shared.view("two"))["steps"]
    assert {step["step_id"] for step in steps} == set(response.headers["x-step-id"].split(","))
    assert [step["parent"] for step in steps] == [None, None]
    assert all(step["delivered"] for step in steps)
    assert whole.usage is not None
    assert whole.usage.completion_tokens == sum(step["output_tokens"] for step in steps)
    assert whole.usage.prompt_tokens == steps[0]["context_tokens"]


async def test_two_streamed_choices_interleave_each_with_its_own_opening_and_end(shared: Running) -> None:
    shared.engine.replies.extend([Reply(text="first"), Reply(text="second one")])
    response = await shared.chat("two-streamed", ask(n=2, stream=True, stream_options={"include_usage": True}))
    *chunks, usage, end = payloads(response.text)
    assert end == "[DONE]"
    assert usage["choices"] == []
    for index in (0, 1):
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["stop"]
        assert mine[-1]["finish_reason"] == "stop"
    assert sorted(joined(chunks, index=index) for index in (0, 1)) == ["first", "second one"]


async def test_siblings_with_a_seed_get_different_ones(shared: Running) -> None:
    shared.engine.replies.extend([Reply(text="a"), Reply(text="b")])
    completion(await shared.chat("seeded", ask(n=2, seed=7)))
    assert sorted(request.sampling_params["sampling_seed"] for request in shared.engine.requests) == [7, 8]


async def test_the_next_turn_continues_the_choice_that_the_agent_took(shared: Running) -> None:
    shared.engine.replies.extend([Reply(text="first"), Reply(text="second one"), Reply(text="third")])
    first = completion(await shared.chat("took", ask(n=2)))
    for choice in first.choices:
        if choice.message.content == "second one":
            answer = choice.message.model_dump(exclude_none=True)
    completion(
        await shared.chat("took", ask(messages=[{"role": "user", "content": "Hi"}, answer, *ask("On")["messages"]]))
    )
    taken = next(r for r in shared.engine.requests if len(r.output_ids) > 2)
    shared.engine.recorder.assert_token_exact([taken, shared.engine.requests[-1]])
