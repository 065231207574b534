"""Case 85 (sglang issue 954, vllm issues 6083 and 7299, litellm issue 9657 and others): the usage of a stream is
missing, null, or in the wrong chunk.

Input: a stream with `stream_options.include_usage`, and without it; read by the official SDK.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import ask, call_text, tool
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("text", ["Hello.", call_text(at=1)], ids=["text", "call"])
async def test_the_last_chunk_has_usage_and_no_choices(shared: Running, text: str) -> None:
    shared.engine.replies.append(Reply(text=text))
    async with shared.agent("case-85") as agent:
        stream = await agent.chat.completions.create(
            **ask(tools=[tool()]), stream=True, stream_options={"include_usage": True}
        )
        *chunks, last = [chunk async for chunk in stream]
    request = shared.engine.requests[-1]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.prompt_tokens == len(request.input_ids)
    assert last.usage.completion_tokens == len(request.output_ids)
    assert last.usage.total_tokens == len(request.input_ids) + len(request.output_ids)
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


@pytest.mark.parametrize("options", [{}, {"stream_options": None}, {"stream_options": {"include_usage": False}}])
async def test_nobody_who_did_not_ask_gets_a_chunk_without_choices(
    shared: Running, options: dict[str, Any]
) -> None:
    shared.engine.replies.append(Reply(text="Hello."))
    async with shared.agent("case-85-none") as agent:
        stream = await agent.chat.completions.create(**ask(), stream=True, **options)
        assert all(chunk.choices and chunk.usage is None for chunk in [chunk async for chunk in stream])
