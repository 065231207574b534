"""Case 9 (NVIDIA-NeMo/labs-molt PR 20): a delta cut off by length is empty, or starts inside a tag, where the
template rewrites earlier turns; the request succeeds and the feedback is gone.

Input: Qwen3, two turns with reasoning and a plain follow-up; and an empty think block inside a tool loop.
"""

from __future__ import annotations

import pytest

from tests.support.chat import call_text, tool, user
from tests.support.conversation import Conversation
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


def appended(shared: Running, talk: Conversation) -> str:
    """What the last request has after the tokens before it."""
    assert talk.goes_on_exactly()
    before, after = talk.requests[-2:]
    ids = after.input_ids[len(before.input_ids + before.output_ids) :]
    return shared.engine.vocabulary.decode(ids, skip_special_tokens=False)


async def test_a_follow_up_is_there_though_the_template_would_drop_the_reasoning_before_it(shared: Running) -> None:
    talk = Conversation(shared, "case-9-user")
    for text in ("First?", "Second?", "Third?"):
        await talk.say(user(text), reply="<think>\n" + "A rather long thought. " * 20 + "\n</think>\n\nYes.")
        if len(talk.requests) > 1:
            expected = f"\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
            assert appended(shared, talk) == expected


async def test_an_empty_think_block_inside_a_tool_loop(shared: Running) -> None:
    talk = Conversation(shared, "case-9-tools", fields={"tools": [tool()]})
    await talk.say(user("Look."), reply=f"<think>\n\n</think>\n\n{call_text(at=1)}")
    for number in range(2):
        call = talk.messages[-1]["tool_calls"][0]
        result = {"role": "tool", "tool_call_id": call["id"], "content": f"result {number}"}
        await talk.say(result, reply=f"<think>\n\n</think>\n\n{call_text(at=number)}")
        wrapped = f"<tool_response>\nresult {number}\n</tool_response>"
        assert appended(shared, talk) == f"\n<|im_start|>user\n{wrapped}<|im_end|>\n<|im_start|>assistant\n"
