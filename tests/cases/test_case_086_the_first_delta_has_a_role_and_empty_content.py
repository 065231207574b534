"""Case 86 (sgl-project/sglang issue 18335): a first delta whose role and content are null breaks clients.

Input: streamed replies that begin with text, with reasoning, with a call, and with nothing.
"""

from __future__ import annotations

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import ask, call_text, payloads, tool
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("text", ["Hi.", "<think>\nhm\n</think>\n\nHi.", call_text(at=1), ""])
async def test_every_choice_opens_with_role_and_empty_text_and_no_delta_has_nulls(
    shared: Running, text: str
) -> None:
    shared.engine.replies.extend([Reply(text=text, chunk_tokens=1)] * 2)
    response = await shared.chat(f"case-86-{len(text)}", ask(tools=[tool()], stream=True, n=2))
    *chunks, end = payloads(response.text)
    assert end == "[DONE]"
    for index in (0, 1):
        first, *rest = [c["delta"] for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert first == {"role": "assistant", "content": ""}
        assert all(value is not None for delta in rest for value in delta.values())
