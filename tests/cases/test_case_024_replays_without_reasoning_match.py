"""Case 24 (openclaw/openclaw issue 81058, PR 81091): a client drops `reasoning_content` when it replays to a
provider that it does not know.

Input: the messages of turn 2 without it.
"""

from __future__ import annotations

import pytest

from tests.support.chat import user
from tests.support.conversation import Conversation
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("named", ["reasoning_content", "reasoning", None])
async def test_the_stored_ids_are_used(shared: Running, named: str | None) -> None:
    talk = Conversation(shared, f"case-24-{named}")
    await talk.say(user("What is it?"), reply="<think>\nSomething with paws.\n</think>\n\nA cat.")
    thought = talk.messages[-1].pop("reasoning_content")
    assert thought == "Something with paws."
    if named is not None:
        talk.messages[-1][named] = thought
    await talk.say(user("Sure?"), reply="Yes.")
    assert talk.goes_on_exactly()
    assert "<think>\nSomething with paws.\n</think>" in talk.sent()
    forgiven = (await talk.steps())[1]["forgiven"]
    expected = [] if named else [{"message_index": 1, "field": "reasoning_content", "kind": "missing"}]
    assert forgiven == expected
