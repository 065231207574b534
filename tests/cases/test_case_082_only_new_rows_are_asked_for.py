"""Case 82: elsewhere the routing of the whole sequence came back with each turn, which made pauses of a second.

Here each turn asks for what the turns before it do not have, and the rows together are one less than the tokens.
"""

from __future__ import annotations

import base64

import pytest

from tests.routing_replay.rows import ENGINE, SETTINGS, asked, assert_rows, only_segment
from tests.support.chat import user
from tests.support.conversation import Conversation
from tests.support.running import Running

__all__ = ["ENGINE", "SETTINGS"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = "All work and no play makes Jack a dull boy. " * 700


async def test_a_turn_behind_a_long_history_asks_for_its_own_rows(shared: Running) -> None:
    talk = Conversation(shared, "long")
    await talk.say(user(LONG), reply="Yes.")
    for turn in range(3):
        await talk.say(user(f"And {turn}?"), reply="So.")
    first = talk.requests[0]
    assert len(first.input_ids) > 7_000
    held = 0
    for request in talk.requests:
        assert asked(request) == held
        total = len(request.input_ids) + len(request.output_ids)
        assert total - 1 - held < (len(first.input_ids) + 100 if held == 0 else 60)
        held = total - 1
    segment = await only_segment(shared, "long")
    assert len(segment["tokens"]) - 1 == held
    assert_rows(segment)
    packed = segment["routed_experts"]
    assert len(base64.b64decode(packed["data"])) == held * 3 * 2, "a byte for each expert id"
