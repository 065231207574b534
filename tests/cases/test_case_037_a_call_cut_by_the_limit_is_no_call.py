"""Case 37: a tool call cut by max_tokens: finish reason `length`, no half call, ids kept, sample marked truncated.

Input: one function tool, max_tokens 10, 12, 16, 32; then the turn is replayed and the session goes on.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import ask, call_text, completion, follow, joined, payloads, tool
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")
CALL = call_text(path="/a/rather/long/path/to/some/file.txt", text="with quite some words in it " * 2)


@pytest.mark.parametrize("limit", [1, 10, 12, 16, 32])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_the_raw_text_is_content_and_the_session_goes_on(shared: Running, limit: int, stream: bool) -> None:
    session = f"case-37-{limit}-{stream}"
    shared.engine.replies.extend([Reply(text=CALL), Reply(text="Fine.")])
    body = ask(tools=[tool()], max_tokens=limit)
    response = await shared.chat(session, {**body, "stream": stream})
    message, finish = streamed(response.text) if stream else whole(completion(response))
    assert finish == "length"
    assert not message.get("tool_calls")
    [request] = shared.engine.requests
    assert len(request.output_ids) == limit
    decoded = shared.engine.vocabulary.decode(request.output_ids, skip_special_tokens=False)
    assert message["content"] == decoded

    completion(await shared.chat(session, follow({**body, "max_tokens": 50}, message, "Go on.")))
    shared.engine.assert_i1(session=session)
    [segment] = await shared.segments(session)
    first, second = shared.engine.requests
    close = second.input_ids[len(first.input_ids) + limit]
    assert close == shared.engine.vocabulary.eos_token_ids[0]
    assert segment["full_loss_mask"][len(first.input_ids) + limit] == 0  # the template's close, not sampled
    assert sum(segment["full_loss_mask"]) == limit + len(second.output_ids)


async def test_a_sample_that_ends_so_is_marked_truncated(shared: Running) -> None:
    shared.engine.replies.append(Reply(text=CALL))
    completion(await shared.chat("case-37-truncated", ask(tools=[tool()], max_tokens=10)))
    [segment] = await shared.segments("case-37-truncated")
    assert segment["finish_reason"] == "length"
    assert segment["extra_info"]["truncated"] is True
    assert sum(segment["full_loss_mask"]) == 10


async def test_a_call_that_was_complete_before_the_cut_is_a_call(shared: Running) -> None:
    shared.engine.replies.append(Reply(text=f"{call_text(at=1)}\n{CALL}"))
    limit = len(shared.engine.vocabulary.encode(call_text(at=1))) + 5
    got = completion(await shared.chat("case-37-second", ask(tools=[tool()], max_tokens=limit))).choices[0]
    assert [made.function.arguments for made in got.message.tool_calls or ()] == ['{"at": 1}']
    assert got.finish_reason == "length"


def whole(got: Any) -> tuple[dict[str, Any], str]:
    return got.choices[0].message.model_dump(exclude_none=True), got.choices[0].finish_reason


def streamed(text: str) -> tuple[dict[str, Any], str]:
    *chunks, end = payloads(text)
    assert end == "[DONE]"
    calls = [c for chunk in chunks for c in chunk["choices"][0]["delta"].get("tool_calls") or ()]
    message = {"role": "assistant", "content": joined(chunks), "tool_calls": calls or None}
    return message, chunks[-1]["choices"][0]["finish_reason"]
