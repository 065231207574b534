"""Case 10 (NVIDIA-NeMo/labs-molt PR 131): the engine drops the stop token from the text but keeps it in the
ids; the environment added another `<|im_end|>`, doubled in 8 of 8 rollouts.

Input: finish reason stop, last id 151645, then a tool's feedback.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.chat import call_text, tool, user
from tests.support.conversation import Conversation
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")
IM_END = 151645


async def test_each_turn_is_closed_once(shared: Running) -> None:
    talk = Conversation(shared, "case-10", fields={"tools": [tool()]})
    await talk.say({"role": "system", "content": "S"}, user("Look."), reply=call_text(at=1))
    result = {"role": "tool", "tool_call_id": talk.messages[-1]["tool_calls"][0]["id"], "content": "a cat"}
    await talk.say(result, reply="A cat.")
    await talk.say(user("Thanks."), reply="Bye.")
    assert all(request.output_ids[-1] == IM_END for request in talk.requests)
    for request in talk.requests[1:]:
        ids = request.input_ids
        assert all(pair != (IM_END, IM_END) for pair in pairwise(ids))
    assert talk.requests[2].input_ids.count(IM_END) == 6  # system, user, two replies, the result, the user again
