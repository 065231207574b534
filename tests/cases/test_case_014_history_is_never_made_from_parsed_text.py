"""Case 14 (NVIDIA-NeMo/Gym PR 1787): the prefix assertion failed on 48 of 48 tool turns: multi-line tool blocks
were lost when rendered anew from parsed text, and `</think>` was mangled.

Input: a multi-line string argument in a Qwen tool call, with reasoning before it.
"""

from __future__ import annotations

import json

import pytest

from tests.support.chat import tool, user
from tests.support.conversation import Conversation
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")
CODE = 'def f():\n\n    return "</think>"\n\n\n# end\n'
BODY = json.dumps({"name": "look", "arguments": {"code": CODE}}).replace(", ", " ,\n   ")
CALL = f"<tool_call>\n\n{BODY}\n\n</tool_call>"


async def test_the_next_prompt_has_every_byte_of_the_call(shared: Running) -> None:
    talk = Conversation(shared, "case-14", fields={"tools": [tool()]})
    answer = await talk.say(user("Write."), reply=f"<think>\nA <tool_call> then.\n\n\n</think>\n\n\n{CALL}")
    call = answer["tool_calls"][0]
    assert json.loads(call["function"]["arguments"]) == {"code": CODE}
    call["function"]["arguments"] = json.dumps({"code": CODE}, indent=2)  # the client writes them anew
    await talk.say({"role": "tool", "tool_call_id": call["id"], "content": "ok"}, reply="Done.")
    assert talk.goes_on_exactly()
    assert f"</think>\n\n\n{CALL}<|im_end|>" in talk.sent()
