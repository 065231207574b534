"""Case 1 (huggingface/trl issue 5224, PR 5242): BPE is many-to-one, so text that is encoded again gives other ids.

Input: a completion whose ids are no canonical split, then one tool result, then a user message.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import tool, user
from tests.support.conversation import Conversation, trained_ids
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


def odd(shared: Running, *pieces: str) -> list[int]:
    """Ids of the pieces, each encoded alone."""
    ids = [token for piece in pieces for token in shared.engine.vocabulary.encode(piece)]
    assert ids != shared.engine.vocabulary.encode("".join(pieces))
    return ids


async def test_the_next_prompt_begins_with_the_ids_that_were_sampled(shared: Running) -> None:
    talk = Conversation(shared, "case-1", fields={"tools": [tool()]})
    call = '\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    first = odd(shared, "he", "ll", "o")
    answer = await talk.say(user("Hi"), reply=Reply(ids=[*first, *shared.engine.vocabulary.encode(call)]))
    assert answer["content"] == "hello"
    result: dict[str, Any] = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "a cat"}
    await talk.say(result, reply=Reply(ids=odd(shared, "-", "shift")))
    assert talk.goes_on_exactly()
    await talk.say(user("Thanks"), reply="Bye.")
    assert talk.goes_on_exactly()
    [segment] = await talk.segments()
    assert trained_ids(segment) == [token for request in talk.requests for token in request.output_ids]
    assert segment["tokens"] == talk.requests[2].input_ids + talk.requests[2].output_ids
