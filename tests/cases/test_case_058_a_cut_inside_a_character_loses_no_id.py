"""Case 58 (ohdearquant/lattice issue 751, timtoole02/Camelid PR 288): a reply that is cut inside a character lost
its tail, or was a 503.

Input: `max_tokens` ends in the middle of an emoji.
"""

from __future__ import annotations

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import ask, completion, follow, joined, payloads
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")
TEXT = "ok 🫠"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_all_ids_are_kept_and_the_next_turn_goes_on_from_them(shared: Running, stream: bool) -> None:
    session, engine = f"case-58-{stream}", shared.engine
    ids = engine.vocabulary.encode(TEXT)
    limit = len(ids) - 1
    assert engine.vocabulary.decode(ids[:limit], skip_special_tokens=True).endswith("�"), "not cut in a character"
    engine.replies.append(Reply(text=TEXT, chunk_tokens=1))
    body = ask(max_tokens=limit, stream=stream)
    response = await shared.chat(session, body)
    assert response.status_code == 200
    if stream:
        chunks = payloads(response.text)
        text, reason = joined(chunks), chunks[-2]["choices"][0]["finish_reason"]
    else:
        choice = completion(response).choices[0]
        text, reason = choice.message.content or "", choice.finish_reason
    assert text == "ok �"
    assert reason == "length"
    [request] = engine.requests
    assert request.output_ids == ids[:limit]
    completion(await shared.chat(session, follow(ask(), {"role": "assistant", "content": text}, "More")))
    second = engine.requests[1]
    assert second.input_ids[: len(request.input_ids) + limit] == request.input_ids + ids[:limit]
    [segment] = await shared.segments(session)
    begin = len(request.input_ids)
    assert segment["tokens"][begin : begin + limit] == ids[:limit]
    assert segment["full_loss_mask"][begin : begin + limit] == [1] * limit
    assert segment["full_loss_mask"][begin + limit] == 0  # the close that the model did not sample
