"""Case 51 (AReaL proxy_rollout_server.py, 1rgs/claude-code-proxy issue 99): content as a list of text parts
with `cache_control`, in system messages, too.

Input: `[{"type": "text", "text": "a", "cache_control": {...}}, {"type": "text", "text": "b"}]`. Right: the ids
of the joined string; keys that mean nothing here do not count for matching.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.chat import ask, user
from tests.support.conversation import Conversation
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


def parts(*texts: str, **marks: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text, **marks} for text in texts]


async def test_parts_are_rendered_as_the_joined_string(shared: Running) -> None:
    told = {
        "string": ("Be brief.", "ab"),
        "parts": (parts("Be ", "brief."), parts("a", "b")),
        "marked": (parts("Be brief.", cache_control={"type": "ephemeral"}), parts("a", "", "b", extra=1)),
    }
    prompts = set()
    for name, (system, asked) in told.items():
        talk = Conversation(shared, f"case-51-{name}")
        await talk.say({"role": "system", "content": system}, {"role": "user", "content": asked}, reply="Yes.")
        prompts.add(tuple(talk.requests[0].input_ids))
    assert len(prompts) == 1


async def test_marks_that_move_from_turn_to_turn_do_not_break_the_match(shared: Running) -> None:
    talk = Conversation(shared, "case-51-moving")
    for number in range(3):
        for message in talk.messages:
            text = message["content"] if isinstance(message["content"], str) else message["content"][0]["text"]
            message["content"] = parts(text)
        new = {"role": "user", "content": parts(f"Question {number}?", cache_control={"type": "ephemeral"})}
        await talk.say(new, reply="Yes.")
    assert all(talk.goes_on_exactly(index) for index in (1, 2))
    assert all(step["forgiven"] == [] for step in await talk.steps())


async def test_what_is_no_text_is_refused_until_it_is_supported(shared: Running) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    response = await shared.chat("case-51-image", ask(messages=[user("x"), {"role": "user", "content": [image]}]))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[1].content[0].type"
