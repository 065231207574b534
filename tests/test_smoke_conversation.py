"""The main job in one test: an unmodified SDK, streamed and not, tools and reasoning, exact tokens, one segment."""

from __future__ import annotations

from typing import Any

from tests.fake_sglang import Reply
from tests.support.running import Running

TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}
]


async def test_a_tool_conversation_becomes_one_segment_with_the_sampled_ids(sidecar: Running) -> None:
    call = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
    sidecar.engine.replies.extend(
        [
            Reply(text=f"<think>\nhm\n</think>\n\nLet me look.\n{call}"),
            Reply(text="It is a 🎉."),
            Reply(text="You are welcome."),
        ]
    )
    agent = sidecar.agent("s")
    messages: list[Any] = [{"role": "system", "content": "S"}, {"role": "user", "content": "What is it?"}]
    first = await agent.chat.completions.create(model="m", messages=messages, tools=TOOLS)
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert message.content == "Let me look."
    assert message.tool_calls is not None
    messages += [
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "a party"},
    ]
    stream = await agent.chat.completions.create(model="m", messages=messages, tools=TOOLS, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == "It is a 🎉."
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Thanks."}]
    await agent.chat.completions.create(model="m", messages=messages, tools=TOOLS)

    [segment] = await sidecar.segments("s")
    sidecar.engine.assert_i1(session="s")
    sampled = [t for t, m in zip(segment["tokens"], segment["full_loss_mask"], strict=True) if m]
    assert sampled == [t for request in sidecar.engine.requests for t in request.output_ids]
    assert segment["finish_reason"] == "stop"
