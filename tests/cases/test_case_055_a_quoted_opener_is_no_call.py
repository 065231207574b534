"""Case 55 (PrimeIntellect-ai/renderers README): a literal `<tool_call>` in a text must not be parsed as a call.

Input: an assistant that quotes `<tool_call>` as ordinary ids, where the tokenizer has a token for it.
"""

from __future__ import annotations

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import call_text, tool, user
from tests.support.conversation import Conversation
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")
TOOL_CALL = 151657


def quoted(shared: Running, text: str) -> list[int]:
    """`text` with every control token's spelling as ordinary ids."""
    ids = [
        token
        for piece in text.replace("<", "\0<\0").split("\0")
        for token in shared.engine.vocabulary.encode(piece)
    ]
    assert TOOL_CALL not in ids
    assert shared.engine.vocabulary.decode(ids, skip_special_tokens=False) == text
    return ids


async def test_it_is_content_and_the_history_matches(shared: Running) -> None:
    text = f"Write it like this: {call_text(at=1)} and nothing else."
    talk = Conversation(shared, "case-55", fields={"tools": [tool()]})
    answer = await talk.say(user("How do I call?"), reply=Reply(ids=quoted(shared, text)))
    assert answer["content"] == text
    assert "tool_calls" not in answer
    await talk.say(user("Thanks."), reply="Bye.")
    assert talk.goes_on_exactly()


async def test_a_real_call_beside_the_quote_is_one(shared: Running) -> None:
    ids = [*quoted(shared, "As in <tool_call>:\n"), *shared.engine.vocabulary.encode(call_text(at=2))]
    talk = Conversation(shared, "case-55-both", fields={"tools": [tool()]})
    answer = await talk.say(user("Call."), reply=Reply(ids=ids))
    assert answer["content"] == "As in <tool_call>:"
    assert [call["function"]["arguments"] for call in answer["tool_calls"]] == ['{"at": 2}']
