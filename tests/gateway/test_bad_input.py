"""Bad input is refused in OpenAI's envelope, names field, value and remedy, and leaves the session as it was."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.fake_sglang import Reply
from tests.gateway.good_session import SESSION
from tests.support.chat import ask, call_text, completion, follow, refusal, tool, user
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")
SETTINGS = {"max_body": 16384}


def of(message: Any) -> dict[str, Any]:
    return ask(messages=[message])


def calls(*made: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(made)}


def call(call_id: str = "c1", name: Any = "look", arguments: Any = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


WRONG_TYPES: list[tuple[str, Any, str]] = [
    ("model", 5, "string"),
    ("messages", None, "list"),
    ("messages", {}, "list"),
    ("messages", [], "at least one"),
    ("tools", {}, "list"),
    ("stream", "yes", "true or false"),
    ("stream", 1, "true or false"),
    ("stream_options", [], "object"),
    ("max_tokens", "ten", "whole number"),
    ("max_tokens", 1.5, "whole number"),
    ("max_tokens", 0, "at least 1"),
    ("max_tokens", True, "whole number"),
    ("max_completion_tokens", -1, "at least 1"),
    ("temperature", "hot", "number"),
    ("temperature", -0.1, "0 to 100"),
    ("top_p", 1.1, "0 to 1"),
    ("top_k", 2.5, "whole number"),
    ("min_p", [], "number"),
    ("frequency_penalty", 3, "-2 to 2"),
    ("presence_penalty", "x", "number"),
    ("repetition_penalty", 9, "0 to 2"),
    ("seed", "1", "whole number"),
    ("stop", 7, "list of strings"),
    ("stop", ["a", 7], "list of strings"),
    ("stop", [""], "empty"),
    ("logit_bias", [1], "object"),
    ("n", 0, "at least 1"),
    ("n", "2", "whole number"),
    ("n", 1000, "at most 128"),
    ("logprobs", 3, "true or false"),
    ("top_logprobs", 5, "send 0 or leave it out"),
    ("top_logprobs", "5", "whole number"),
    ("response_format", "json", "object"),
    ("session_id", 5, "string"),
    ("metadata", "x", "object"),
    ("chat_template_kwargs", "x", "object"),
    ("reasoning_effort", 3, "string"),
    ("tool_choice", "required", "only auto and none"),
    ("tool_choice", {"type": "function", "function": {"name": "look"}}, "only auto and none"),
]
BREAKS_EXACTNESS = [
    "input_ids",
    "prompt_token_ids",
    "input_embeds",
    "logprob_start_len",
    "return_logprob",
    "skip_special_tokens",
    "no_stop_trim",
    "ignore_eos",
    "stop_token_ids",
    "rid",
]
NESTED: dict[str, tuple[dict[str, Any], str, str, str]] = {
    # body, field, value as shown, remedy
    "message is no object": (of("hi"), "messages[0]", "'hi'", "object"),
    "no role": (of({"content": "x"}), "messages[0].role", "None", "assistant"),
    "role is no string": (of({"role": 5, "content": "x"}), "messages[0].role", "5", "assistant"),
    "unknown role": (of({"role": "robot", "content": "x"}), "messages[0].role", "'robot'", "known roles"),
    "content is a number": (of({"role": "user", "content": 5}), "messages[0].content", "5", "text parts"),
    "part is no object": (
        of({"role": "user", "content": ["x"]}),
        "messages[0].content[0]",
        "'x'",
        "object",
    ),
    "part is an image": (
        of({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}),
        "messages[0].content[0].type",
        "'image_url'",
        "only text",
    ),
    "part without text": (
        of({"role": "user", "content": [{"type": "text"}]}),
        "messages[0].content[0].text",
        "None",
        "string",
    ),
    "tool_calls is no list": (
        ask(messages=[user("x"), {"role": "assistant", "tool_calls": {}}, user("y")]),
        "messages[1].tool_calls",
        "{}",
        "list",
    ),
    "call without function": (
        ask(messages=[user("x"), calls({"id": "c"}), user("y")]),
        "messages[1].tool_calls[0].function",
        "None",
        "name and arguments",
    ),
    "call whose name is a number": (
        ask(messages=[user("x"), calls(call(name=1)), user("y")]),
        "messages[1].tool_calls[0].function",
        "1",
        "name and arguments",
    ),
    "arguments as an object": (
        ask(messages=[user("x"), calls(call(arguments={"a": 1})), user("y")]),
        "messages[1].tool_calls[0].function.arguments",
        "{'a': 1}",
        "JSON text",
    ),
    "result without its call": (
        ask(messages=[user("x"), {"role": "tool", "tool_call_id": "c1", "content": "r"}]),
        "messages[1]",
        "tool result",
        "send the assistant message with its tool_calls first",
    ),
    "result of another call": (
        ask(messages=[user("x"), calls(call()), {"role": "tool", "tool_call_id": "zz", "content": "r"}]),
        "messages[2].tool_call_id",
        "'zz'",
        "'c1'",
    ),
    "results without ids, too few": (
        ask(messages=[user("x"), calls(call("a"), call("b")), {"role": "tool", "content": "r"}]),
        "messages[2]",
        "1 tool results for 2 calls",
        "give each result the id of its call",
    ),
    "last message is the assistant's": (
        ask(messages=[user("x"), {"role": "assistant", "content": "y"}]),
        "messages[1].role",
        "'assistant'",
        "from a user or a tool",
    ),
    "tool of another type": (
        ask(tools=[{"type": "web_search"}]),
        "tools[0]",
        "web_search",
        "type function",
    ),
    "tool without a name": (
        ask(tools=[{"type": "function", "function": {}}]),
        "tools[0].function",
        "{}",
        "name",
    ),
    "unknown response format": (
        ask(response_format={"type": "xml"}),
        "response_format.type",
        "'xml'",
        "json_schema",
    ),
    "schema is missing": (
        ask(response_format={"type": "json_schema"}),
        "response_format.json_schema",
        "None",
        "schema object",
    ),
    "bias of a word": (ask(logit_bias={"hello": 1}), "logit_bias.hello", "1", "token ids"),
    "bias that is no number": (ask(logit_bias={"5": "x"}), "logit_bias.5", "'x'", "numbers"),
    "template argument of ours": (
        ask(chat_template_kwargs={"messages": []}),
        "chat_template_kwargs.messages",
        "[]",
        "leave it out",
    ),
    "session in metadata is no string": (
        ask(metadata={"session_id": 5}),
        "metadata.session_id",
        "5",
        "string",
    ),
    "usage option is no boolean": (
        ask(stream=True, stream_options={"include_usage": "yes"}),
        "stream_options.include_usage",
        "'yes'",
        "true or false",
    ),
}


async def refused_without_trace(shared: Running, agent: openai.AsyncOpenAI, body: Any) -> openai.BadRequestError:
    """A 400 that reached no engine and changed nothing of the session."""
    before = await shared.view(SESSION)
    error = await refusal(agent, body)
    assert isinstance(error, openai.BadRequestError), error
    assert error.type == "invalid_request_error"
    assert not shared.engine.requests
    assert await shared.view(SESSION) == before
    return error


@pytest.mark.parametrize(("field", "value", "remedy"), WRONG_TYPES, ids=lambda value: repr(value)[:24])
async def test_a_field_of_the_wrong_type_is_named_with_value_and_remedy(
    shared: Running, agent: openai.AsyncOpenAI, field: str, value: Any, remedy: str
) -> None:
    error = await refused_without_trace(shared, agent, ask(**{field: value}))
    assert error.param == field
    assert f"{field} is {value!r}" in error.message
    assert remedy in error.message


@pytest.mark.parametrize("case", NESTED)
async def test_what_is_wrong_inside_a_field_is_named_with_its_path(
    shared: Running, agent: openai.AsyncOpenAI, case: str
) -> None:
    body, field, value, remedy = NESTED[case]
    error = await refused_without_trace(shared, agent, body)
    assert error.param is not None
    assert error.param.startswith(field)
    assert field in error.message
    assert value in error.message
    assert remedy in error.message


@pytest.mark.parametrize("field", BREAKS_EXACTNESS)
async def test_fields_that_break_token_exactness_are_refused_by_name(
    shared: Running, agent: openai.AsyncOpenAI, field: str
) -> None:
    error = await refused_without_trace(shared, agent, ask(**{field: 0}))
    assert error.param == field
    assert f"{field} is 0" in error.message
    assert "token exactness" in error.message


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", b'{"messages": [', b"\xff\xfe{}", b'{"a": NaN}', b'{"a": "\\ud800"}', b"[" * 3000],
    ids=["empty", "text", "cut", "no utf-8", "nan", "half a surrogate", "deep"],
)
async def test_what_is_no_json_is_a_bad_request(shared: Running, agent: openai.AsyncOpenAI, content: bytes) -> None:
    before = await shared.view(SESSION)
    error = await refusal(agent, content=content)
    assert isinstance(error, openai.BadRequestError)
    assert "the body is not JSON" in error.message
    assert "send a JSON object" in error.message
    assert await shared.view(SESSION) == before


@pytest.mark.parametrize("content", [b"[]", b'"x"', b"5", b"null"])
async def test_json_that_is_no_object_is_a_bad_request(agent: openai.AsyncOpenAI, content: bytes) -> None:
    error = await refusal(agent, content=content)
    assert isinstance(error, openai.BadRequestError)
    assert "send an object with model and messages" in error.message


async def test_a_long_value_is_shown_cut(agent: openai.AsyncOpenAI) -> None:
    error = await refusal(agent, ask(max_tokens="x" * 5000))
    assert len(error.message) < 400


async def test_the_session_goes_on_exactly_after_refused_requests(shared: Running) -> None:
    shared.engine.replies.extend([Reply(text="One."), Reply(text=call_text(at=1)), Reply(text="Three.")])
    body = ask(tools=[tool()])
    for step in range(3):
        refused = await shared.chat("goes-on", {**body, "messages": [*body["messages"], {"role": "robot"}]})
        assert refused.status_code == 400
        message = completion(await shared.chat("goes-on", body)).choices[0].message.model_dump(exclude_none=True)
        body = follow(body, message, f"turn {step}")
        if "tool_calls" in message:
            result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "r"}
            body["messages"].insert(-1, result)
    assert len(shared.engine.requests) == 3
    shared.engine.assert_i1(session="goes-on")


async def test_a_refused_request_opens_no_session(shared: Running) -> None:
    for body in (ask(n="x"), of({"role": "robot"}), NESTED["result without its call"][0]):
        assert (await shared.chat("never-opened", body)).status_code == 400
    assert (await shared.control.get("/session/never-opened")).status_code == 404
