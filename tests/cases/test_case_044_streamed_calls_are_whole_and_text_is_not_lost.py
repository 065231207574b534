"""Case 44 (openclaw/openclaw issue 69672, sgl-project/sglang issues 4700 and 34214): streamed calls with an
empty name or no index, and text that is lost when there are calls, too.

Input: a streamed answer with text and then calls.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import ask, call_text, completion, joined, payloads, tool
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")
TEXT = f"Let me look at both.\n{call_text(at='door')}\n{call_text(at='window')}"


@pytest.mark.parametrize("chunk", [1, 3, 1000])
async def test_joined_deltas_equal_the_whole_reply(shared: Running, chunk: int) -> None:
    shared.engine.replies.extend([Reply(text=TEXT), Reply(text=TEXT, chunk_tokens=chunk)])
    whole = completion(await shared.chat(f"case-44-{chunk}", ask(tools=[tool()]))).choices[0]
    response = await shared.chat(f"case-44-{chunk}-stream", ask(tools=[tool()], stream=True))
    chunks = payloads(response.text)[:-1]
    deltas: list[dict[str, Any]] = [
        call for one in chunks for call in one["choices"][0]["delta"].get("tool_calls") or ()
    ]
    assert joined(chunks) == whole.message.content == "Let me look at both."
    calls: dict[int, dict[str, str]] = {}
    for delta in deltas:
        index = delta["index"]
        if index not in calls:  # the first delta of a call names it
            assert delta["id"]
            assert delta["function"]["name"] == "look"
            calls[index] = {"name": delta["function"]["name"], "arguments": ""}
        calls[index]["arguments"] += delta["function"].get("arguments", "")
    assert sorted(calls) == [0, 1]
    expected = [made.function.arguments for made in whole.message.tool_calls or ()]
    assert [calls[index]["arguments"] for index in (0, 1)] == expected == ['{"at": "door"}', '{"at": "window"}']
    assert chunks[-1]["choices"][0]["finish_reason"] == whole.finish_reason == "tool_calls"
