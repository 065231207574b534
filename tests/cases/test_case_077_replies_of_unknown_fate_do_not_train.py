"""Case 77 (NVIDIA-NeMo/Gym): two replies to one prompt at a session's end, one of them asked for by a client
library's retry: which one the agent kept is not known. They are masked rather than guessed.

Input: a call that is marked as a retry, whose first attempt never arrived, and the same body once more.
"""

from __future__ import annotations

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import ask, completion, follow
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def two_replies(running: Running, session: str) -> list[str]:
    running.engine.replies.extend([Reply(text="one"), Reply(text="another")])
    retried = await running.chat(session, ask(), x_stainless_retry_count="1")
    again = await running.chat(session, ask())
    assert completion(retried).choices[0].message.content == "one"
    assert completion(again).choices[0].message.content == "another"
    return [step["step_id"] for step in (await running.view(session))["steps"]]


async def test_neither_of_two_replies_trains_if_nobody_knows_which_was_kept(shared: Running) -> None:
    steps = await two_replies(shared, "case-77")
    segments = await shared.segments("case-77")
    assert not any(mask for segment in segments for mask in segment["full_loss_mask"])
    [anchor] = [segment for segment in segments if segment["extra_info"]["is_anchor"]]
    assert anchor["extra_info"]["untrainable"] == [
        {"step_id": step_id, "reason": "unresolved_retry"} for step_id in steps
    ]


async def test_the_one_that_was_continued_was_kept(shared: Running) -> None:
    await two_replies(shared, "case-77-resolved")
    shared.engine.replies.append(Reply(text="on"))
    body = follow(ask(), {"role": "assistant", "content": "another"}, "More")
    completion(await shared.chat("case-77-resolved", body))
    segments = await shared.segments("case-77-resolved")
    reasons = [one["reason"] for segment in segments for one in segment["extra_info"]["untrainable"]]
    assert "unresolved_retry" not in reasons
    [kept] = [segment for segment in segments if segment["extra_info"]["is_anchor"]]
    _, second, third = shared.engine.requests
    assert sum(kept["full_loss_mask"]) == len(second.output_ids) + len(third.output_ids)
