"""Case 74: the first reply is lost and the request sent again; elsewhere the session then answered 400 for ever.

Inputs: the same request twice; and a first turn cut by max_tokens, then a changed user message.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import Held, ask, completion, follow, until_states
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("marked", [False, True], ids=["plain", "marked as retry"])
async def test_the_second_attempt_is_served_and_nine_turns_follow(shared: Running, marked: bool) -> None:
    session, held = f"case-74-{marked}", Held()
    shared.engine.replies.append(held.reply())
    body = ask()
    lost = asyncio.ensure_future(shared.chat(session, body))
    await held.reached(shared.engine)
    lost.cancel()
    await until_states(shared, session, "detached")
    shared.engine.continue_aborted = marked
    shared.engine.script = lambda request: Reply(text=f"Answer of {len(request.input_ids)}.")
    headers = {"x_stainless_retry_count": "1"} if marked else {}
    for turn in range(10):
        answer = completion(await shared.chat(session, body, **headers)).choices[0].message
        body = follow(body, answer.model_dump(exclude_none=True), f"turn {turn}")
        headers = {}
    shared.engine.continue_aborted = True
    shared.engine.assert_i1(session=session, expected_roots=1 if marked else 2)
    await shared.finalize(session, reward=1.0)
    segments = await shared.segments(session)
    assert segments[-1]["reward"] == 1.0
    assert segments[-1]["segment_count"] == 1
    assert sum(segments[-1]["full_loss_mask"]) > 50


async def test_a_first_turn_cut_by_the_limit_and_then_changed_is_a_new_root(shared: Running) -> None:
    shared.engine.replies.extend([Reply(text="one two three four"), Reply(text="Better.")])
    cut = completion(await shared.chat("case-74-cut", ask("Tell me", max_tokens=2)))
    assert cut.choices[0].finish_reason == "length"
    again = completion(await shared.chat("case-74-cut", ask("Tell me briefly")))
    assert again.choices[0].message.content == "Better."
    [first, second] = (await shared.view("case-74-cut"))["steps"]
    assert (first["parent"], second["parent"]) == (None, None)
    shared.engine.replies.append(Reply(text="Sure."))
    body = follow(ask("Tell me briefly"), again.choices[0].message.model_dump(exclude_none=True), "More")
    completion(await shared.chat("case-74-cut", body))
    shared.engine.assert_i1(session="case-74-cut", expected_roots=2)
