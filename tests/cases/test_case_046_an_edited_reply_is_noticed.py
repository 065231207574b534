"""Case 46 (rllm-org/rllm, token accumulator): the assistant message that the client puts into the history is
skipped without being compared with what was sampled.

Input: the client repairs the assistant message and goes on. Right: the edit is a foreign turn, what was sampled
stays a trained leaf, and the view names message and field.
"""

from __future__ import annotations

import pytest

from tests.support.chat import call_text, tool, user
from tests.support.conversation import Conversation, trained_ids
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("content", lambda message: message.update(content="Let me see again.")),
        ("tool_calls", lambda message: message.update(tool_calls=message["tool_calls"] * 2)),
        (
            "tool_calls[0].function.arguments",
            lambda message: message["tool_calls"][0]["function"].update(arguments='{"at": 2}'),
        ),
        (
            "tool_calls[0].function.name",
            lambda message: message["tool_calls"][0]["function"].update(name="peek"),
        ),
    ],
)
async def test_the_edit_is_context_and_the_original_trains(shared: Running, field: str, change: object) -> None:
    assert callable(change)
    talk = Conversation(shared, f"case-46-{field}", fields={"tools": [tool()]})
    await talk.say(user("Look."), reply="Where?")
    await talk.say(user("There."), reply=f"Let me see.\n{call_text(at=1)}")
    change(talk.messages[-1])
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "a cat"} for call in talk.messages[-1]["tool_calls"]
    ]
    await talk.say(*results, reply="A cat.")
    _, _, third = await talk.steps()
    assert third["break_reason"] == {"segment_reason": "branch", "message_index": 3, "field": field}
    segments = await talk.segments()
    assert sorted(token for one in segments for token in trained_ids(one)) == sorted(
        token for request in talk.requests for token in request.output_ids
    )
