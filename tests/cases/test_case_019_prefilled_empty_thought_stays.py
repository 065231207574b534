"""Case 19 (QwenLM/Qwen3 issue 1826, PrimeIntellect-ai/renderers PR 105): with `enable_thinking: false` the
prompt ends in an empty think block that the template leaves out of the history.

Input: system, user "Hi", reply "Hello!", user, with `enable_thinking: false`, replayed byte for byte.
"""

from __future__ import annotations

import pytest

from tests.support.chat import user
from tests.support.conversation import Conversation, trained_ids
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")
EMPTY = "<think>\n\n</think>\n\n"


async def test_the_prefilled_ids_are_context_and_nothing_forks(shared: Running) -> None:
    talk = Conversation(shared, "case-19", fields={"chat_template_kwargs": {"enable_thinking": False}})
    answer = await talk.say({"role": "system", "content": "S"}, user("Hi"), reply="Hello!")
    assert answer["content"] == "Hello!"
    await talk.say(user("Again"), reply="Hello again!")
    assert talk.goes_on_exactly()
    assert talk.sent().count(EMPTY) == 2
    [segment] = await talk.segments()
    assert trained_ids(segment) == [token for request in talk.requests for token in request.output_ids]
