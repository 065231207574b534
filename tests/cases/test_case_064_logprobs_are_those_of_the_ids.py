"""Case 64 (sgl-project/sglang issue 28456): chat logprobs are grouped or absent when tool or reasoning parsers are
on. So they are read from `meta_info.output_token_logprobs`, one per id, and never from chat completions.

Input: a reply with reasoning and a call, with logprobs.
"""

from __future__ import annotations

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import ask, call_text, completion, payloads, tool
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_parsers_that_take_text_away_take_no_logprob_away(shared: Running, stream: bool) -> None:
    session = f"case-64-{stream}"
    shared.engine.replies.append(Reply(text=f"<think>\nhm\n</think>\n\nLook.\n{call_text(at=1)}", chunk_tokens=1))
    response = await shared.chat(session, ask(tools=[tool()], logprobs=True, stream=stream))
    if stream:
        choice = payloads(response.text)[-2]["choices"][0]
    else:
        assert completion(response).choices[0].message.tool_calls
        choice = response.json()["choices"][0]
    [request] = shared.engine.requests
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == request.output_logprobs
    assert not shared.engine.recorder.calls_to("/v1/chat/completions")
    [segment] = await shared.segments(session)
    assert segment["full_logprobs"][-len(request.output_ids) :] == request.output_logprobs
    assert segment["full_loss_mask"][-len(request.output_ids) :] == [1] * len(request.output_ids)
