"""Case 29 (OpenRouterTeam/ai-sdk-provider issue 171, teunlao/swift-ai-sdk PR 39): the order of keys changes
between turns or with a restart of the client, in arguments and in tool results.

Arguments match. A tool's result is text: one that was seen keeps its stored ids, and one with other text is
another message, since the model would read something else.
"""

from __future__ import annotations

import pytest

from tests.support.chat import tool, user
from tests.support.conversation import Conversation
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def turns(shared: Running, session: str) -> Conversation:
    talk = Conversation(shared, session, fields={"tools": [tool()]})
    call = '<tool_call>\n{"name": "look", "arguments": {"b": 1, "a": 2}}\n</tool_call>'
    answer = await talk.say(user("Look."), reply=call)
    result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": '{"y": 1, "x": 2}'}
    await talk.say(result, reply="A cat.")
    return talk


async def test_reordered_arguments_continue_and_the_result_keeps_its_ids(shared: Running) -> None:
    talk = await turns(shared, "case-29-arguments")
    talk.messages[1]["tool_calls"][0]["function"]["arguments"] = '{"a":2,"b":1}'
    await talk.say(user("Sure?"), reply="Yes.")
    assert talk.goes_on_exactly()
    assert '{"y": 1, "x": 2}' in talk.sent()


async def test_a_reordered_result_is_another_message_and_the_view_says_so(shared: Running) -> None:
    talk = await turns(shared, "case-29-result")
    talk.messages[2] = {**talk.messages[2], "content": '{"x": 2, "y": 1}'}
    await talk.say(user("Sure?"), reply="Yes.")
    first, _, third = await talk.steps()
    assert third["parent"] == first["step_id"]
    assert third["break_reason"] == {"segment_reason": "branch", "message_index": 2, "field": "content"}
    ids = talk.requests[0].input_ids + talk.requests[0].output_ids
    assert talk.requests[2].input_ids[: len(ids)] == ids
