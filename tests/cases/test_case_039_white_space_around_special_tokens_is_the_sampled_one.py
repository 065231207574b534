"""Case 39 (NVIDIA-NeMo/RL, docs of openai_server_utils): white-space ids around a call's special tokens differ
between what is sampled and what the template prints.

Input: sampled `</think>`, three newlines, `<tool_call>`.
"""

from __future__ import annotations

import pytest

from tests.support.chat import call_text, tool, user
from tests.support.conversation import Conversation
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("space", ["", "\n", "\n\n\n", " \n\n \n"])
async def test_it_is_kept(shared: Running, space: str) -> None:
    talk = Conversation(shared, f"case-39-{len(space)}", fields={"tools": [tool()]})
    answer = await talk.say(user("Look."), reply=f"<think>\nhm\n</think>{space}{call_text(at=1)}")
    call = answer["tool_calls"][0]
    assert answer.get("content") is None
    await talk.say({"role": "tool", "tool_call_id": call["id"], "content": "a cat"}, reply="A cat.")
    assert talk.goes_on_exactly()
    assert f"</think>{space}<tool_call>" in talk.sent()
