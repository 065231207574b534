"""Case 61: an engine that returns N ids and other than N logprobs fails the turn loudly; nothing is padded.

Input: N ids, N-1 logprobs (and the rest of the kind: N+1, a null, NaN, a positive one, a wrong count).
"""

from __future__ import annotations

import pytest

from tests.fake_sglang import Fault, Reply, faults
from tests.support.chat import ask, completion, follow
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")

KINDS: dict[str, Fault] = {
    "one fewer": faults.LogprobCount(-1),
    "none": faults.LogprobCount(-6),
    "one more": faults.LogprobCount(1),
    "null": faults.BadLogprob(None, 2),
    "nan": faults.BadLogprob(float("nan"), 0),
    "positive": faults.BadLogprob(0.1, 1),
    "count": faults.CompletionTokens(-1),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_the_turn_fails_and_the_session_is_as_if_it_had_never_been(shared: Running, kind: str) -> None:
    session = f"case-61-{kind}"
    shared.engine.replies.append(Reply(text="First."))
    body = ask()
    answer = completion(await shared.chat(session, body)).choices[0].message.model_dump(exclude_none=True)
    before = await shared.view(session)
    shared.engine.replies.append(Reply(text="one two three four five", faults=KINDS[kind]))
    second = follow(body, answer, "More")
    response = await shared.chat(session, second)
    assert response.status_code == 502
    assert response.json()["error"]["code"] == "bad_engine_reply"
    assert await shared.view(session) == before

    shared.engine.replies.clear()
    shared.engine.replies.append(Reply(text="Second."))
    completion(await shared.chat(session, second))
    [segment] = await shared.segments(session)
    first, _, last = shared.engine.requests
    assert segment["tokens"] == last.input_ids + last.output_ids
    trained = zip(segment["full_logprobs"], segment["full_loss_mask"], strict=True)
    sampled = [logprob for logprob, mask in trained if mask]
    assert sampled == [*first.output_logprobs, *last.output_logprobs]
    assert all(logprob < 0 for logprob in sampled)
