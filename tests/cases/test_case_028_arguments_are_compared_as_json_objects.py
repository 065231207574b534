"""Case 28 (radixark/miles PR 2240): a harness writes arguments anew, or sends `"{}"` for empty ones: false
divergence.

Input: stored `{"b": 1, "a": 2}` and replay `{"a":2,"b":1}`; `""` and `"{}"`; key spacing. Right: equal as JSON
objects, and still distinct for `1` and `1.0`, duplicate keys, NaN, and what is no object.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.chat import tool, user
from tests.support.conversation import Conversation
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def replayed(shared: Running, session: str, stored: str, told: str) -> Conversation:
    """A call whose arguments the client replays as `told`, and its result."""
    talk = Conversation(shared, session, fields={"tools": [tool()]})
    await talk.say(user("Look."), reply=f'<tool_call>\n{{"name": "look", "arguments": {stored}}}\n</tool_call>')
    call: dict[str, Any] = talk.messages[-1]["tool_calls"][0]
    call["function"]["arguments"] = told
    await talk.say({"role": "tool", "tool_call_id": call["id"], "content": "a cat"}, reply="A cat.")
    return talk


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        ('{"b": 1, "a": 2}', '{"a":2,"b":1}'),
        ('{"a": 1}', '{\n  "a" : 1\n}'),
        ('{"a": "é"}', '{"a": "\\u00e9"}'),
        ('{"a": {"y": [1, {"d": 4, "c": 3}], "x": null}}', '{"a":{"x":null,"y":[1,{"c":3,"d":4}]}}'),
        ("{}", "{}"),
        ("{}", ""),
        ("{}", " "),
    ],
)
async def test_the_same_object_in_another_spelling_continues(shared: Running, stored: str, told: str) -> None:
    talk = await replayed(shared, f"case-28-same-{hash((stored, told))}", stored, told)
    assert talk.goes_on_exactly()


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        ('{"a": 1}', '{"a": 1.0}'),
        ('{"a": 1}', '{"a": true}'),
        ('{"a": 1}', '{"a": "1"}'),
        ('{"a": 1}', '{"a": 1, "a": 1}'),
        ('{"a": null}', '{"a": NaN}'),
        ('{"a": null}', "{}"),
        ("{}", "[]"),
        ("{}", "null"),
    ],
)
async def test_what_may_mean_something_else_is_another_call(shared: Running, stored: str, told: str) -> None:
    talk = await replayed(shared, f"case-28-other-{hash((stored, told))}", stored, told)
    assert not talk.goes_on_exactly()
    reason = (await talk.steps())[1]["break_reason"]
    assert reason["field"] == "tool_calls[0].function.arguments"
