"""Case 63 (strands-rl/strands-sglang issue 34 and PR 32): `logprob_start_len` 0 defeats the radix cache and takes
gigabytes; another value gives null at the boundary.

Input: several turns; what the engine is asked.
"""

from __future__ import annotations

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import ask, completion, follow
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_only_logprobs_of_the_output_are_asked_for_in_every_turn(shared: Running) -> None:
    body = ask(logprobs=True)
    for text in ("One.", "Two.", "Three."):
        shared.engine.replies.append(Reply(text=text))
        answer = completion(await shared.chat("case-63", body)).choices[0].message.model_dump(exclude_none=True)
        body = follow(body, answer, "More")
    assert len(shared.engine.requests) == 3
    for request in shared.engine.requests:
        assert request.return_logprob
        assert request.body.get("logprob_start_len", -1) == -1
        assert not request.body.get("top_logprobs_num")
