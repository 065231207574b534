"""Case 7 (NVIDIA-NeMo/RL PR 1337): a turn that hit max_tokens has no end of turn; the template's close is added
once, as context that does not train.
"""

from __future__ import annotations

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import user
from tests.support.conversation import Conversation, trained_ids
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")
IM_END = 151645


@pytest.mark.parametrize("turns", [1, 2])
async def test_the_close_is_context(shared: Running, turns: int) -> None:
    talk = Conversation(shared, f"case-7-{turns}")
    for number in range(turns):
        ids = shared.engine.vocabulary.encode(f"It is cat number {number} of those")
        await talk.say(user("What is it?"), reply=Reply(ids=ids, finish="length"), max_tokens=len(ids))
    await talk.say(user("Go on."), reply="I see.")
    sent = talk.requests[-1].input_ids
    for request in talk.requests[:-1]:
        end = len(request.input_ids) + len(request.output_ids)
        assert request.output_ids[-1] != IM_END
        assert sent[end : end + 2] == [IM_END, 198]
    assert sent.count(IM_END) == 2 * turns + 1
    [segment] = await talk.segments()
    assert trained_ids(segment) == [token for request in talk.requests for token in request.output_ids]
