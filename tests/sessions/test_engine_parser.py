"""Replies in a format that is unknown here, read by the engine's own parser: one question per step, nothing shown
before its answer, nothing lost without one, and every turn token-exact."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.fake_sglang import FakeSGLang, Fault, RecordedCall, Reply, faults
from tests.support.chat import ask, completion, follow, joined, payloads, streaming, tool
from tests.support.running import Running, engine_for, running_sidecar
from tests.support.waiting import until

CALLS, REASONING = "/parse_function_call", "/separate_reasoning"
UNKNOWN = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<<{{ c.function.name }} {{ c.function.arguments | tojson }}>>{% endfor %}"
    "<|im_end|>{% endfor %}{% if add_generation_prompt %}[assistant]OPENED{% endif %}"
)
TWO = 'Let me look.\n<<look {"at": 1}>><<look {"at": "ü"}>>'


@asynccontextmanager
async def serving(
    directory: Path,
    tmp_path: Path,
    *,
    opened: str = "",
    names: tuple[str | None, str | None] = ("okapi", "okapi"),
    **settings: Any,
) -> AsyncIterator[Running]:
    """A sidecar before an engine that reports these parsers; `opened`: what the generation prompt ends in."""
    template = tmp_path / "unknown.jinja"
    template.write_text(UNKNOWN.replace("OPENED", opened), encoding="utf-8")
    async with (
        engine_for(directory, parsers=names) as engine,
        running_sidecar(engine, tmp_path / "state", chat_template=template, **settings) as running,
    ):
        yield running


@pytest.fixture
async def calls(qwen3_dir: Path, tmp_path: Path) -> AsyncIterator[Running]:
    """The engine reads the calls."""
    async with serving(qwen3_dir, tmp_path, names=(None, "okapi"), tool_call_parser="engine") as running:
        yield running


@pytest.fixture
async def reasoning(qwen3_dir: Path, tmp_path: Path) -> AsyncIterator[Running]:
    """The engine reads the reasoning; the prompt opens it."""
    settings = {"reasoning_parser": "engine", "tool_call_parser": "hermes"}
    async with serving(qwen3_dir, tmp_path, opened="<think>\n", **settings) as running:
        yield running


def asked(engine: FakeSGLang, path: str) -> list[RecordedCall]:
    """Questions about replies: the first is the start-up's."""
    return engine.recorder.calls_to(path)[1:]


async def notes(running: Running, session: str) -> list[Any]:
    return [step["extra"].get("engine_parser") for step in (await running.view(session))["steps"]]


async def counts(running: Running) -> Any:
    return (await running.control.get("/integration/capabilities")).json()["parsers"]["engine"]


async def test_the_sdk_gets_the_calls_and_goes_on_token_exact(calls: Running) -> None:
    calls.engine.replies.extend([Reply(text=TWO), Reply(text="It is a party."), Reply(text="Bye.")])
    agent = calls.agent("s")
    messages: list[Any] = [{"role": "user", "content": "What is it?"}]
    first = await agent.chat.completions.create(model="m", messages=messages, tools=[tool()])
    message = first.choices[0].message
    assert (first.choices[0].finish_reason, message.content) == ("tool_calls", "Let me look.")
    assert message.tool_calls is not None
    assert [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls] == [  # type: ignore[union-attr]
        (f"call_{first.id.removeprefix('chatcmpl-')}_0", "look", '{"at": 1}'),
        (f"call_{first.id.removeprefix('chatcmpl-')}_1", "look", '{"at": "ü"}'),
    ]
    messages.append(message.model_dump(exclude_none=True))
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "a party"} for call in message.tool_calls]
    second = await agent.chat.completions.create(model="m", messages=messages, tools=[tool()])
    assert second.choices[0].message.content == "It is a party."
    messages += [second.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "Thanks."}]
    await agent.chat.completions.create(model="m", messages=messages, tools=[tool()])

    calls.engine.assert_i1(session="s")
    assert [call.body["text"] for call in asked(calls.engine, CALLS)] == [TWO, "It is a party.", "Bye."]
    assert all(call.body["tool_call_parser"] == "okapi" for call in asked(calls.engine, CALLS))
    assert await notes(calls, "s") == [{"reads": "calls", "name": "okapi"}] * 3
    assert await counts(calls) == {"name": "okapi", "asked": 3, "failed": 0}
    [segment] = await calls.segments("s")
    sampled = [t for t, m in zip(segment["tokens"], segment["full_loss_mask"], strict=True) if m]
    assert sampled == [t for request in calls.engine.requests for t in request.output_ids]


async def test_nothing_is_streamed_before_the_answer_and_then_all_of_it(qwen3_dir: Path, tmp_path: Path) -> None:
    async with serving(qwen3_dir, tmp_path, tool_call_parser="engine", heartbeat_interval=0.05) as running:
        engine, answered = running.engine, asyncio.Event()
        engine.replies.append(Reply(text=TWO, chunk_tokens=1))
        engine.parsing.faults.append(faults.SlowStart(until=answered))
        async with streaming(running, "s", ask(tools=[tool()])) as stream:
            before = [await stream.event()]
            while not asked(engine, CALLS) or len(before) < 4:  # heartbeats prove that it is not just late
                before.append(await stream.event())
            before += [await stream.event(), await stream.event()]
            answered.set()
            rest = await stream.rest()
        [opening] = [event for event in before if not event.startswith(":")]
        assert payloads(opening + "\n\n")[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        *chunks, end = rest
        assert end == "[DONE]"
        parsed = [ChatCompletionChunk.model_validate(chunk, strict=True) for chunk in chunks]
        deltas = [choice.delta for chunk in parsed for choice in chunk.choices]
        assert "".join(delta.content or "" for delta in deltas) == "Let me look."
        found = [call.function.arguments for delta in deltas for call in delta.tool_calls or () if call.function]
        assert found == ['{"at": 1}', '{"at": "ü"}']
        assert parsed[-1].choices[0].finish_reason == "tool_calls"
        assert len(asked(engine, CALLS)) == 1


async def test_a_streamed_reply_is_the_one_that_is_not_streamed_and_matches_the_next_turn(calls: Running) -> None:
    for session, stream in (("whole", False), ("streamed", True)):
        calls.engine.replies.extend([Reply(text=TWO), Reply(text="Yes.")])
        body = ask(tools=[tool()])
        if stream:
            async with calls.agent(session) as agent, agent.chat.completions.stream(**body) as events:
                message = (await events.get_final_completion()).choices[0].message.model_dump(exclude_none=True)
        else:
            message = completion(await calls.chat(session, body)).choices[0].message.model_dump(exclude_none=True)
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "a party"} for call in message["tool_calls"]
        ]
        keep = ("role", "content", "tool_calls")
        answer = {key: message[key] for key in keep}
        again = {**body, "messages": [*body["messages"], answer, *results]}
        assert (await calls.chat(session, again)).status_code == 200
        calls.engine.assert_i1(session=session)
        assert (await calls.view(session))["steps"][0]["finish_reason"] == "tool_calls"


async def test_text_is_streamed_as_it_comes_where_no_calls_are_wanted(calls: Running) -> None:
    for session, wanted in (("none", {}), ("off", {"tools": [tool()], "tool_choice": "none"})):
        opened = asyncio.Event()
        calls.engine.replies.append(Reply(text="one two three four", hold=opened, hold_after=2, chunk_tokens=1))
        async with streaming(calls, session, ask(**wanted)) as stream:
            begun = await stream.until_text()
            opened.set()
            assert begun + joined(await stream.rest()) == "one two three four"
    assert asked(calls.engine, CALLS) == []
    assert await notes(calls, "none") == [None]


NONSENSE: dict[str, Fault] = {
    "an error": faults.HttpError(500),
    "a refusal": faults.HttpError(400, {"object": "error", "message": "no", "type": "Bad Request", "code": 400}),
    "a page": faults.HtmlBody(502),
    "a page with status 200": faults.HtmlBody(200),
    "no object": faults.HttpError(200, ["calls"]),
    "no calls": faults.HttpError(200, {"normal_text": ""}),
    "a call that is none": faults.HttpError(
        200, {"normal_text": "", "calls": [{"tool_index": 0, "parameters": "{"}]}
    ),
    "a lost connection": faults.DropConnection(),
}


@pytest.mark.parametrize("fault", NONSENSE.values(), ids=NONSENSE)
@pytest.mark.parametrize("stream", [False, True])
async def test_without_a_usable_answer_the_text_is_content_and_the_step_goes_on(
    fault: Fault, stream: bool, calls: Running, caplog: pytest.LogCaptureFixture
) -> None:
    text = f"<|box_start|>{TWO} behind"  # a special token, which is not shown where nothing was to be read
    calls.engine.replies.extend([Reply(text=text), Reply(text="Good.")])
    calls.engine.parsing.faults.append(fault)
    body = ask(tools=[tool()])
    with caplog.at_level(logging.WARNING, logger="sidecar"):
        response = await calls.chat("s", {**body, "stream": stream})
    if stream:
        shown = joined(payloads(response.text))
    else:
        choice = completion(response).choices[0]
        shown = choice.message.content or ""
        assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
    assert shown == text
    assert "the text stays content: session_id=s" in caplog.text
    [note] = await notes(calls, "s")
    assert (note["reads"], note["name"]) == ("calls", "okapi")
    assert note["failure"]
    assert len(asked(calls.engine, CALLS)) == 1
    assert await counts(calls) == {"name": "okapi", "asked": 1, "failed": 1}
    assert (
        await calls.chat("s", follow(body, {"role": "assistant", "content": text}, "Go on."))
    ).status_code == 200
    calls.engine.assert_i1(session="s")


async def test_an_engine_that_is_silent_about_a_reply_is_not_waited_for_for_ever(
    qwen3_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.generation.workers._CONTROL_SECONDS", 2)
    async with serving(qwen3_dir, tmp_path, tool_call_parser="engine") as running:
        never = asyncio.Event()
        running.engine.replies.append(Reply(text=TWO))
        running.engine.parsing.faults.append(faults.SlowStart(until=never))
        assert completion(await running.chat("s", ask(tools=[tool()]))).choices[0].message.content == TWO
        never.set()
        assert "failure" in (await notes(running, "s"))[0]


async def test_an_engine_that_goes_down_before_it_is_asked_costs_the_calls_and_not_the_step(calls: Running) -> None:
    engine = calls.engine
    engine.replies.append(Reply(text=TWO))

    async def go_down(*_: object) -> None:
        await engine.down()

    calls.sidecar.controller.parsing._workers.post_json = _after(  # type: ignore[method-assign]
        go_down, calls.sidecar.controller.parsing._workers.post_json
    )
    assert completion(await calls.chat("s", ask(tools=[tool()]))).choices[0].message.content == TWO
    assert (await calls.view("s"))["steps"][0]["state"] == "committed"
    assert "failure" in (await notes(calls, "s"))[0]


def _after(first: Any, then: Any) -> Any:
    async def both(*arguments: Any) -> Any:
        await first()
        return await then(*arguments)

    return both


@pytest.mark.parametrize("text", ["<<look {oops>> and more", "<<other {}>> and more", "plain"])
async def test_where_the_engine_finds_no_call_the_text_is_kept(text: str, calls: Running) -> None:
    calls.engine.replies.append(Reply(text=text))
    choice = completion(await calls.chat("s", ask(tools=[tool()]))).choices[0]
    assert (choice.message.content, choice.finish_reason) == (text, "stop")
    assert await notes(calls, "s") == [{"reads": "calls", "name": "okapi"}]


async def test_a_cut_reply_is_content_and_nobody_is_asked(calls: Running) -> None:
    calls.engine.replies.append(Reply(text=TWO, finish="length"))
    choice = completion(await calls.chat("s", ask(tools=[tool()]))).choices[0]
    assert (choice.message.content, choice.finish_reason) == (TWO, "length")
    assert asked(calls.engine, CALLS) == []


async def test_each_of_several_choices_is_asked_about_once(calls: Running) -> None:
    calls.engine.replies.extend([Reply(text=TWO), Reply(text="No.")])
    choices = completion(await calls.chat("s", ask(tools=[tool()], n=2))).choices
    assert sorted(len(choice.message.tool_calls or ()) for choice in choices) == [0, 2]
    assert len(asked(calls.engine, CALLS)) == 2


async def test_a_retry_that_comes_during_the_question_joins_it(calls: Running) -> None:
    answered = asyncio.Event()
    calls.engine.replies.append(Reply(text=TWO))
    calls.engine.parsing.faults.append(faults.SlowStart(until=answered))
    body = ask(tools=[tool()])
    async with asyncio.TaskGroup() as group:
        first = group.create_task(calls.chat("s", body))
        await until(lambda: asked(calls.engine, CALLS), "the question")
        again = group.create_task(calls.chat("s", body, x_stainless_retry_count="1"))
        session = await calls.sidecar.registry.for_call("s", None)
        [run] = session.runs.values()
        await until(lambda: len(run._readers) == 2, "the retry")
        answered.set()
    one, two = (ChatCompletion.model_validate(reply.result().json()) for reply in (first, again))
    assert one.choices[0].message == two.choices[0].message
    assert len(one.choices[0].message.tool_calls or ()) == 2
    assert len(asked(calls.engine, CALLS)) == len(calls.engine.requests) == 1


async def test_an_agent_that_leaves_during_the_question_leaves_a_whole_step(calls: Running) -> None:
    answered = asyncio.Event()
    calls.engine.replies.append(Reply(text=TWO))
    calls.engine.parsing.faults.append(faults.SlowStart(until=answered))
    body = ask(tools=[tool()])
    async with streaming(calls, "s", body) as stream:
        await stream.chunk()
        await until(lambda: asked(calls.engine, CALLS), "the question")
    answered.set()
    replayed = await calls.chat("s", {**body, "stream": True}, x_stainless_retry_count="1")
    assert joined(payloads(replayed.text)) == "Let me look."
    assert replayed.text.count('"name":"look"') == 2
    assert len(asked(calls.engine, CALLS)) == len(calls.engine.requests) == 1


async def test_the_engine_splits_the_reasoning_that_the_prompt_opened(reasoning: Running) -> None:
    call = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
    reasoning.engine.replies.extend([Reply(text=f"hm\n</think>\n\nSo.\n{call}"), Reply(text="hm</think>Yes.")])
    body = ask(tools=[tool()])
    message = completion(await reasoning.chat("s", body)).choices[0].message
    assert (message.content, message.model_extra) == ("So.", {"reasoning_content": "hm"})
    assert message.tool_calls is not None
    assert [made.function.arguments for made in message.tool_calls] == ['{"at": 1}']  # type: ignore[union-attr]
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "a party"}
    again = {**body, "messages": [*body["messages"], message.model_dump(exclude_none=True), result]}
    response = await reasoning.chat("s", {**again, "stream": True})
    chunks = payloads(response.text)
    assert (joined(chunks), joined(chunks, "reasoning_content")) == ("Yes.", "hm")
    reasoning.engine.assert_i1(session="s")
    assert [question.body for question in asked(reasoning.engine, REASONING)] == [
        {"text": f"<think>hm\n</think>\n\nSo.\n{call}", "reasoning_parser": "okapi"},
        {"text": "<think>hm</think>Yes.", "reasoning_parser": "okapi"},
    ]
    assert asked(reasoning.engine, CALLS) == []
    assert await notes(reasoning, "s") == [{"reads": "reasoning", "name": "okapi"}] * 2


async def test_without_an_answer_reasoning_is_content_too(reasoning: Running) -> None:
    text = "maybe <tool_call>\n{}\n</tool_call>\n</think>\n\nSo."
    reasoning.engine.replies.append(Reply(text=text))
    reasoning.engine.parsing.faults.append(faults.HttpError(503))
    message = completion(await reasoning.chat("s", ask(tools=[tool()]))).choices[0].message
    assert (message.content, message.tool_calls, message.model_extra) == (text, None, {})
    assert "failure" in (await notes(reasoning, "s"))[0]


async def test_capabilities_say_who_reads_what(calls: Running) -> None:
    body = (await calls.control.get("/integration/capabilities")).json()
    engine = {"name": "okapi", "asked": 0, "failed": 0}
    assert body["parsers"] == {"tool_calls": "engine", "reasoning": None, "engine": engine, "warnings": []}
    assert (body["tools"], body["model_family"]) == (True, "generic")
