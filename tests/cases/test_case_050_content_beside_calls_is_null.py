"""Case 50 (radixark/miles, session/core.py): an upstream content of None is refused as an error.

Decided here: a reply of nothing but calls has content null, as OpenAI's own; one of nothing at all has `""`.
Both are delivered, stored, and may be sent back as they came.
"""

from __future__ import annotations

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import ask, call_text, completion, tool, user
from tests.support.conversation import Conversation
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(("text", "content"), [(call_text(at=1), None), (f"Hm.\n{call_text(at=1)}", "Hm.")])
async def test_the_sdk_reads_it_and_it_may_be_sent_back(shared: Running, text: str, content: str | None) -> None:
    session = f"case-50-{content}"
    shared.engine.replies.append(Reply(text=text))
    body = ask("Look.", tools=[tool()])
    message = completion(await shared.chat(session, body)).choices[0].message
    assert message.content == content
    assert message.tool_calls
    talk = Conversation(shared, session, [user("Look."), message.model_dump()], {"tools": [tool()]})
    await talk.say({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "a cat"}, reply="A cat.")
    assert talk.goes_on_exactly()


async def test_a_reply_of_nothing_is_an_empty_text(shared: Running) -> None:
    talk = Conversation(shared, "case-50-nothing")
    answer = await talk.say(user("Look."), reply=Reply(ids=[]))
    assert answer["content"] == ""
    await talk.say(user("Well?"), reply="A cat.")
    assert talk.goes_on_exactly()
