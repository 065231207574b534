"""Case 5 (verl-project/verl issue 6501, PR 6921): the newline that the template prints after `<|im_end|>` is never
sampled and was never added, one id missing per boundary.

Input: Qwen3, a reply with a call that stops at `<|im_end|>`, then the tool's result.
"""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.support.chat import call_text, tool, user
from tests.support.conversation import Conversation
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")
IM_END, NEWLINE, IM_START = 151645, 198, 151644


async def test_the_ids_at_the_boundary_are_those_of_the_full_render(shared: Running, qwen3_dir: Any) -> None:
    talk = Conversation(shared, "case-5", fields={"tools": [tool()]})
    answer = await talk.say(user("Weather?"), reply=call_text(city="Oslo"))
    before = talk.requests[0].input_ids + talk.requests[0].output_ids
    assert before[-1] == IM_END
    result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "rain"}
    await talk.say(result, reply="It rains.")
    sent = talk.requests[1].input_ids
    assert sent[len(before) - 1 : len(before) + 2] == [IM_END, NEWLINE, IM_START]
    messages = talk.messages[:3]
    messages[1]["tool_calls"][0]["function"]["arguments"] = {"city": "Oslo"}
    messages[1]["content"] = ""
    reference = AutoTokenizer.from_pretrained(qwen3_dir)
    full = reference.apply_chat_template(messages, tools=[tool()], add_generation_prompt=True, return_dict=True)
    assert sent == full["input_ids"]
