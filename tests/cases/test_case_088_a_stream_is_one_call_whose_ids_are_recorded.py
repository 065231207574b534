"""Case 88 (microsoft/agent-lightning issue 262): a streamed call lost its token ids, and the advice was to call
without a stream and make one up. That is superseded by the design: the stream is real, and its
ids are those that train.

Input: `stream: true`, by the official SDK.
"""

from __future__ import annotations

import pytest

from tests.support.chat import Held, ask
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_text_leaves_as_it_is_sampled_by_one_call_and_all_of_its_ids_train(shared: Running) -> None:
    held = Held()
    shared.engine.replies.append(held.reply())
    text = ""
    async with shared.agent("case-88") as agent:
        async for chunk in await agent.chat.completions.create(**ask(), stream=True):
            text += chunk.choices[0].delta.content or ""
            if text and not held.open.is_set():
                assert not shared.engine.requests[0].done  # it came while the engine was still generating
                held.open.set()
    assert text == held.text
    [request] = shared.engine.requests
    [segment] = await shared.segments("case-88")
    assert segment["tokens"] == request.input_ids + request.output_ids
    assert segment["full_logprobs"][len(request.input_ids) :] == request.output_logprobs
    assert sum(segment["full_loss_mask"]) == len(request.output_ids)
