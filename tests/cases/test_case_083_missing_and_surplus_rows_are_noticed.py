"""Case 83: elsewhere a reply lacked rows or had more, or showed 255 for shared experts that nothing recorded.

Here rows are counted and ids checked; a step whose rows are wrong does not train, says so, and harms no other step.
`tests/routing_replay/test_wrong_rows.py` has what becomes of the rows themselves.
"""

from __future__ import annotations

import pytest

from tests.fake_sglang import Reply, faults
from tests.routing_replay.rows import ENGINE, SETTINGS, assert_rows, only_segment, reasons
from tests.support.chat import user
from tests.support.conversation import Conversation, trained_ids
from tests.support.running import Running

__all__ = ["ENGINE", "SETTINGS"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

WRONG = {
    "missing": faults.RoutedRowCount(-1),
    "surplus": faults.RoutedRowCount(1),
    "absent": faults.NoRoutedRows(),
    "two shared experts": faults.ExpertId(255, slots=(0, 2)),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_step_with_wrong_rows_does_not_train_and_the_others_do(shared: Running, wrong: str) -> None:
    talk = Conversation(shared, wrong)
    await talk.say(user("One?"), reply="One.")
    await talk.say(user("Two?"), reply=Reply(text="Two.", faults=WRONG[wrong]))
    await talk.say(user("Three?"), reply="Three.")
    first, _, third = talk.requests
    segment = await only_segment(shared, wrong)
    steps = segment["extra_info"]["step_ids"]
    assert segment["extra_info"]["untrainable"] == [{"step_id": steps[1], "reason": "replay_rows"}]
    assert trained_ids(segment) == first.output_ids + third.output_ids
    assert_rows(segment)


async def test_without_a_fault_all_steps_train(shared: Running) -> None:
    talk = Conversation(shared, "right")
    for text in ("One.", "Two."):
        await talk.say(user("?"), reply=text)
    assert reasons(await only_segment(shared, "right")) == []
