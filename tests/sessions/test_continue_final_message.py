"""`continue_final_message`: the reply goes on with the last message, whose text is context; then both are one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import ask, completion, joined, payloads, tool, user
from tests.support.conversation import Conversation, trained_ids
from tests.support.running import Running, running_sidecar

pytestmark = pytest.mark.asyncio(loop_scope="module")
EMPTY_THOUGHT = "<think>\n\n</think>\n\n"


def begun(text: str, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **fields}


async def go_on(talk: Conversation, *new: dict[str, Any], reply: str | Reply, **fields: Any) -> dict[str, Any]:
    """Continue the last message; the agent then keeps it and the answer as one."""
    answer = await talk.say(*new, reply=reply, continue_final_message=True, **fields)
    first = talk.messages[-2]
    talk.messages[-2:] = [{**first, "content": (first["content"] or "") + (answer["content"] or "")}]
    return answer


async def test_the_clients_text_is_context_and_the_agent_gets_the_continuation_alone(shared: Running) -> None:
    talk = Conversation(shared, "prefix")
    answer = await go_on(talk, user("What is it?"), begun("It is"), reply=" a cat.")
    assert answer["content"] == " a cat."
    assert talk.sent().endswith(f"<|im_start|>assistant\n{EMPTY_THOUGHT}It is")
    await talk.say(user("Sure?"), reply="Yes.")
    assert talk.goes_on_exactly()
    steps = await talk.steps()
    assert [step["forgiven"] for step in steps] == [[], []]
    [segment] = await talk.segments()
    assert trained_ids(segment) == [token for request in talk.requests for token in request.output_ids]
    assert [message["content"] for message in segment["messages"]] == [
        "What is it?",
        "It is a cat.",
        "Sure?",
        "Yes.",
    ]


async def test_behind_a_reply_only_what_is_new_is_sent_after_its_ids(shared: Running) -> None:
    talk = Conversation(shared, "prefix-later")
    await talk.say(user("What is it?"), reply="A cat.")
    await go_on(talk, user("Sure?"), begun("Yes, since"), reply=" it meows.")
    assert talk.goes_on_exactly()
    assert talk.sent().endswith(
        f"<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n{EMPTY_THOUGHT}Yes, since"
    )
    await talk.say(user("Oh."), reply="Indeed.")
    assert talk.goes_on_exactly()
    assert [step["segment_reason"] for step in await talk.steps()] == ["root", None, None]


async def test_a_reply_that_was_cut_goes_on_from_its_own_ids_and_trains_whole(shared: Running) -> None:
    talk = Conversation(shared, "cut")
    ids = shared.engine.vocabulary.encode("It is a rather large cat that sleeps")
    await talk.say(user("What is it?"), reply=Reply(ids=ids, finish="length"), max_tokens=len(ids))
    await go_on(talk, reply=" all day.")
    assert talk.requests[1].input_ids == talk.requests[0].input_ids + ids
    assert talk.messages[-1]["content"] == "It is a rather large cat that sleeps all day."
    await talk.say(user("Sure?"), reply="Yes.")
    assert talk.goes_on_exactly()
    [segment] = await talk.segments()
    assert trained_ids(segment) == [token for request in talk.requests for token in request.output_ids]
    assert [message["content"] for message in segment["messages"]][1] == talk.messages[1]["content"]


async def test_a_reply_that_had_ended_goes_on_without_its_stop_token(shared: Running) -> None:
    talk = Conversation(shared, "ended")
    await talk.say(user("What is it?"), reply="A cat.")
    await go_on(talk, reply=" And a dog.")
    before = talk.requests[0]
    assert talk.requests[1].input_ids == before.input_ids + before.output_ids[:-1]
    assert (await talk.steps())[1]["break_reason"] == {
        "segment_reason": "stop_trimmed",
        "message_index": 1,
        "field": None,
    }
    first, second = await talk.segments()
    assert trained_ids(first) == before.output_ids
    assert trained_ids(second) == talk.requests[1].output_ids


async def test_a_stream_gives_only_the_continuation(shared: Running) -> None:
    shared.engine.replies.append(Reply(text=" a cat.", chunk_tokens=1))
    body = ask(messages=[user("What is it?"), begun("It is")], continue_final_message=True, stream=True)
    response = await shared.chat("prefix-stream", body)
    *chunks, end = payloads(response.text)
    assert (joined(chunks), end) == (" a cat.", "[DONE]")


async def test_reasoning_that_was_cut_goes_on_as_reasoning(shared: Running) -> None:
    talk = Conversation(shared, "cut-thought")
    ids = shared.engine.vocabulary.encode("<think>\nLet me")
    first = await talk.say(user("What is it?"), reply=Reply(ids=ids, finish="length"), max_tokens=len(ids))
    assert first["reasoning_content"] == "Let me"
    answer = await talk.say(reply=" look.\n</think>\n\nA cat.", continue_final_message=True)
    assert (answer["reasoning_content"], answer["content"]) == (" look.", "A cat.")
    talk.messages[-2:] = [begun("A cat.", reasoning_content="Let me look.")]
    await talk.say(user("Sure?"), reply="Yes.")
    assert talk.goes_on_exactly()
    assert (await talk.steps())[2]["forgiven"] == []


async def test_a_marked_retry_is_answered_with_the_continuation_alone(shared: Running) -> None:
    shared.engine.replies.append(Reply(text=" a cat."))
    body = ask(messages=[user("What is it?"), begun("It is")], continue_final_message=True)
    first = completion(await shared.chat("prefix-retry", body))
    again = completion(await shared.chat("prefix-retry", body, x_stainless_retry_count="1"))
    assert again.choices[0].message == first.choices[0].message
    assert again.choices[0].message.content == " a cat."


async def test_what_was_continued_is_known_after_a_restart(shared: Running, tmp_path: Any) -> None:
    async with running_sidecar(shared.engine, tmp_path / "state") as before:
        talk = Conversation(before, "prefix-restart")
        await go_on(talk, user("What is it?"), begun("It is"), reply=" a cat.")
    async with running_sidecar(shared.engine, tmp_path / "state") as after:
        talk.running = after
        await talk.say(user("Sure?"), reply="Yes.")
        assert talk.goes_on_exactly()
        [segment] = await talk.segments()
        assert [message["role"] for message in segment["messages"]] == ["user", "assistant"] * 2


@pytest.mark.parametrize("fields", [{"add_generation_prompt": False}, {"add_generation_prompt": None}, {}])
async def test_clients_may_say_that_they_want_no_generation_prompt(shared: Running, fields: Any) -> None:
    talk = Conversation(shared, f"prefix-prompt-{len(str(fields))}")
    await go_on(talk, user("What is it?"), begun("It is"), reply=" a cat.", **fields)
    assert talk.sent().endswith("It is")


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (ask(messages=[user("x"), begun("y")]), "messages[1].role", "unless continue_final_message is true"),
        (
            ask(messages=[user("x"), begun("y")], continue_final_message=False),
            "messages[1].role",
            "unless continue_final_message is true",
        ),
        (ask(continue_final_message=True), "messages[0].role", "needs an assistant message"),
        (
            ask(
                messages=[
                    user("x"),
                    begun("", tool_calls=[{"id": "a", "function": {"name": "look", "arguments": "{}"}}]),
                ],
                tools=[tool()],
                continue_final_message=True,
            ),
            "messages[1].tool_calls",
            "only text can be continued",
        ),
        (
            ask(messages=[user("x"), begun("y")], continue_final_message=True, add_generation_prompt=True),
            "add_generation_prompt",
            "token exactness",
        ),
        (ask(add_generation_prompt=False), "add_generation_prompt", "token exactness"),
        (ask(continue_final_message="yes"), "continue_final_message", "true or false"),
    ],
)
async def test_what_cannot_be_continued_is_refused(shared: Running, body: Any, param: str, words: str) -> None:
    response = await shared.chat("prefix-refused", body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert words in error["message"]
    assert shared.engine.requests == []


async def test_null_is_no_request_to_break_exactness(shared: Running) -> None:
    shared.engine.replies.append(Reply(text="A cat."))
    body = ask(
        input_ids=None, logprob_start_len=None, rid=None, add_generation_prompt=None, continue_final_message=None
    )
    completion(await shared.chat("nulls", body))
