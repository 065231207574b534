"""Case 45 (rllm-org/rllm, gateway in cumulative token mode): from turn 2 on the rewritten call drops `tools`
and returns plain content, so an agent that calls tools gets text.

Input: tools in every request, a call in every turn.
"""

from __future__ import annotations

import pytest

from tests.support.chat import call_text, tool, user
from tests.support.conversation import Conversation
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_turns_two_to_four_have_tool_calls_like_the_first(shared: Running) -> None:
    talk = Conversation(shared, "case-45", fields={"tools": [tool()]})
    answer = await talk.say(user("Look."), reply=call_text(at=0))
    for number in range(1, 4):
        call = answer["tool_calls"][0]
        assert call["function"]["arguments"] == f'{{"at": {number - 1}}}'
        result = {"role": "tool", "tool_call_id": call["id"], "content": f"result {number}"}
        answer = await talk.say(result, reply=call_text(at=number))
        assert talk.goes_on_exactly()
    assert len({one["tool_calls"][0]["id"] for one in talk.messages if one.get("tool_calls")}) == 4
