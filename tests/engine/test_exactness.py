"""What the engine read and sampled is what trains: ids bit for bit, logprobs as the engine itself computes them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.engine.steps import assert_scored, exact_segment, story
from tests.engine.subject import Subject
from tests.support.chat import ask, completion, text_of, user
from tests.support.rollout import sampled_versions
from tests.support.running import Running

TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}
]


async def test_a_conversation_is_one_segment_of_the_ids_and_logprobs_that_the_engine_gives(
    subject: Subject, running: Running
) -> None:
    messages: list[Any] = [{"role": "system", "content": "You are terse."}]
    for turn in range(4):
        messages.append(user(f"What comes after {turn}?"))
        body = {"model": "m", "messages": messages, "max_tokens": 16, "stream": turn % 2 == 1}
        messages.append({"role": "assistant", "content": text_of(await running.chat("s", body))})
    assert len(subject.tap.generations("s")) == 4
    segment = await exact_segment(subject, running, "s")
    assert set(sampled_versions(segment)) == {"1"}
    assert await assert_scored(subject, segment) == sum(segment["full_loss_mask"])


async def test_conversations_at_the_same_time_do_not_mix(subject: Subject, running: Running) -> None:
    names = [f"s{number}" for number in range(6)]
    await asyncio.gather(*(running.chat(name, ask(f"My name is {name}.", max_tokens=24)) for name in names))
    for name in names:
        assert await assert_scored(subject, await exact_segment(subject, running, name)) > 0


async def test_a_stop_token_ends_the_reply_and_trains(subject: Subject, running: Running) -> None:
    stop = max(running.sidecar.model.stop_ids)
    response = await running.chat("s", ask("Say nothing.", max_tokens=50, logit_bias={str(stop): 100}))
    assert completion(response).choices[0].finish_reason == "stop"
    segment = await exact_segment(subject, running, "s")
    assert segment["tokens"][-1] == stop
    assert sum(segment["full_loss_mask"]) == 1
    assert subject.tap.generations("s")[0].last["finish_reason"] == {"type": "stop", "matched": stop}


async def test_a_length_cut_ends_after_just_so_many_ids_and_the_next_turn_goes_on_from_them(
    subject: Subject, running: Running
) -> None:
    body = story(12)
    answer = completion(await running.chat("s", body))
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    message = {"role": "assistant", "content": answer.choices[0].message.content}
    await running.chat("s", {**body, "messages": [*body["messages"], message, user("Go on.")]})
    assert [len(call.output_ids) for call in subject.tap.generations("s")] == [12, 12]
    segment = await exact_segment(subject, running, "s")
    assert await assert_scored(subject, segment) == 24


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_stop_string_ends_the_reply_at_the_id_that_completes_it(
    subject: Subject, running: Running, stream: bool
) -> None:
    text = text_of(await running.chat("whole", story(40)))
    stop = text[10:14]
    await subject.until_idle()  # and its cache is empty, so that the same is computed in the same way
    cut = text_of(await running.chat("s", story(40, stop=[stop], stream=stream)))
    assert cut == text[: text.index(stop)]
    segment = await exact_segment_up_to_stop(subject, running, "s")
    decoded = running.sidecar.model.codec.decode(segment)
    assert stop in decoded
    assert stop not in running.sidecar.model.codec.decode(segment[:-1])


async def exact_segment_up_to_stop(subject: Subject, running: Running, session: str) -> list[int]:
    """The sampled ids of a session whose reply a stop string ended."""
    [segment] = await running.segments(session)
    [call] = subject.tap.generations(session)
    sampled: list[int] = segment["tokens"][len(call.input_ids) :]
    assert sampled == call.output_ids[: len(sampled)]
    assert segment["full_loss_mask"] == [0] * len(call.input_ids) + [1] * len(sampled)
    return sampled


async def test_two_replies_to_one_prompt_are_two_segments_that_train_nothing_twice(
    subject: Subject, running: Running
) -> None:
    answer = completion(await running.chat("s", ask("Say something.", max_tokens=8, n=2)))
    assert len(answer.choices) == 2
    segments = await running.segments("s")
    sampled = sorted(call.output_ids for call in subject.tap.generations("s"))
    trained = [
        [token for token, one in zip(segment["tokens"], segment["full_loss_mask"], strict=True) if one]
        for segment in segments
    ]
    assert sorted(trained) == sampled
    for segment in segments:
        assert await assert_scored(subject, segment) > 0


async def test_tools_and_what_they_give_reach_the_engine_as_the_template_prints_them(
    subject: Subject, running: Running
) -> None:
    body = ask("Look around.", max_tokens=8, tools=TOOLS)
    answer = completion(await running.chat("s", body)).choices[0].message.model_dump(exclude_none=True)
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    said = {**answer, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "a wall"}
    await running.chat("t", {**body, "messages": [*body["messages"], said, result]})
    [engine_call] = subject.tap.generations("t")
    prompt = running.sidecar.model.codec.decode(engine_call.input_ids)
    assert "<tool_response>\na wall\n</tool_response>" in prompt
    assert await assert_scored(subject, await exact_segment(subject, running, "t")) == 8
