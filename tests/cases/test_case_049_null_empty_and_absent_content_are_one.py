"""Case 49 (ollama issue 14181, vercel/ai PRs 12390 and 14888, mlx-vlm PRs 1864 and 2291): content that is `""`,
null or absent beside tool calls renders differently or crashes (`NoneType` is not iterable), and providers
disagree.

Input: an assistant message with calls and content null, `""` or absent. Right: the same message for matching
and for rendering.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.chat import call_text, tool, user
from tests.support.conversation import Conversation
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")
SPELLINGS: dict[str, dict[str, Any]] = {
    "null": {"content": None},
    "empty": {"content": ""},
    "absent": {},
    "no parts": {"content": []},
    "an empty part": {"content": [{"type": "text", "text": ""}]},
}


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_an_own_call_is_matched(shared: Running, spelling: str) -> None:
    talk = Conversation(shared, f"case-49-own-{spelling}", fields={"tools": [tool()]})
    answer = await talk.say(user("Look."), reply=call_text(at=1))
    call = answer["tool_calls"][0]
    talk.messages[-1] = {"role": "assistant", **SPELLINGS[spelling], "tool_calls": [call]}
    await talk.say({"role": "tool", "tool_call_id": call["id"], "content": "a cat"}, reply="A cat.")
    assert talk.goes_on_exactly()
    assert (await talk.steps())[1]["forgiven"] == []


async def test_a_foreign_call_is_rendered_alike(shared: Running) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    prompts = set()
    for spelling, content in SPELLINGS.items():
        talk = Conversation(shared, f"case-49-foreign-{spelling}", fields={"tools": [tool()]})
        foreign = {"role": "assistant", **content, "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": "call_1", "content": "a cat"}
        await talk.say(user("Look."), foreign, result, reply="A cat.")
        prompts.add(tuple(talk.requests[0].input_ids))
    assert len(prompts) == 1


@pytest.mark.parametrize("role", ["system", "user", "tool"])
async def test_other_roles_may_say_nothing_too(shared: Running, role: str) -> None:
    talk = Conversation(shared, f"case-49-{role}", fields={"tools": [tool()]})
    if role == "tool":
        answer = await talk.say(user("Look."), reply=call_text(at=1))
        await talk.say({"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": None}, reply="?")
        at = 2
    else:
        await talk.say({"role": role, "content": None}, user("Look."), reply="Where?")
        at = 0
    talk.messages[at] = {**talk.messages[at], "content": ""}
    await talk.say(user("Well?"), reply="Nothing.")
    assert talk.goes_on_exactly()
