"""Cases 15 and 16 (THUDM/slime issue 2285, huggingface/trl PR 6250): the whole history tokenized in every turn
is quadratic, 56 % of the generation's time at 128 turns and 69,000 tokens.

Input: 100 turns that grow linearly. Right: turn 100 renders and encodes what turn 2 does. Counted in
characters, since times on a busy machine say little; `benchmarks` has the times.
"""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.tito.chat_template import ChatTemplate
from sidecar.tito.codec import Codec
from tests.support.chat import call_text, tool
from tests.support.conversation import Conversation
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")
TURNS = 100


async def test_turn_100_renders_and_encodes_no_more_than_turn_2(
    shared: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    work: list[int] = []
    encode, render = Codec.encode, ChatTemplate.render

    def counted_encode(self: Codec, text: str, *args: Any, **kwargs: Any) -> Any:
        work[-1] += len(text)
        return encode(self, text, *args, **kwargs)

    def counted_render(self: ChatTemplate, *args: Any, **kwargs: Any) -> str:
        text = render(self, *args, **kwargs)
        work[-1] += len(text)
        return text

    monkeypatch.setattr(Codec, "encode", counted_encode)
    monkeypatch.setattr(ChatTemplate, "render", counted_render)
    talk = Conversation(shared, "case-15", [{"role": "user", "content": "Look around."}], {"tools": [tool()]})
    for number in range(TURNS):
        work.append(0)
        answer = await talk.say(reply=call_text(at=f"{number:03}"))
        call = answer["tool_calls"][0]
        talk.messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"{number:03} " * 50})
    lengths = [len(request.input_ids) for request in talk.requests]
    assert lengths[-1] > 30 * (lengths[2] - lengths[1])
    assert work[-1] == work[2]
