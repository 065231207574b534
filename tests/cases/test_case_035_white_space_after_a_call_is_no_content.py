"""Case 35 (ggml-org/llama.cpp PR 22073): Nemotron writes a newline after `</tool_call>`.

The call is accepted; the newline's id stays in the segment, and the agent is shown none of it.
"""

from __future__ import annotations

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import ask, call_text, joined, payloads, tool, user
from tests.support.conversation import Conversation, trained_ids
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("space", ["\n", "\n\n", " \n\t"])
async def test_the_call_is_accepted_and_the_ids_stay(shared: Running, space: str) -> None:
    talk = Conversation(shared, f"case-35-{len(space)}", fields={"tools": [tool()]})
    answer = await talk.say(user("Look."), reply=f"{call_text(at=1)}{space}")
    assert answer.get("content") is None
    [call] = answer["tool_calls"]
    await talk.say({"role": "tool", "tool_call_id": call["id"], "content": "a cat"}, reply="A cat.")
    assert talk.goes_on_exactly()
    assert f"</tool_call>{space}<|im_end|>" in talk.sent()
    [segment] = await talk.segments()
    assert trained_ids(segment) == [token for request in talk.requests for token in request.output_ids]


async def test_streamed_it_is_not_shown_either(shared: Running) -> None:
    shared.engine.replies.append(Reply(text=f"{call_text(at=1)}\n", chunk_tokens=1))
    response = await shared.chat("case-35-stream", ask(tools=[tool()], stream=True))
    assert joined(payloads(response.text)[:-1]) == ""
