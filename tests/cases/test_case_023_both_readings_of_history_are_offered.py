"""Case 23 (verl-project/verl issue 6854): which is right, to append (thoughts pile up) or to render anew (the
prefix guard fails)? Both are offered, and the data says which was in force.

Qwen3 drops the reasoning of earlier turns once the user speaks again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.chat import user
from tests.support.conversation import Conversation, trained_ids
from tests.support.running import engine_for, running_sidecar

TURNS = 4


@pytest.mark.parametrize("choice", ["keep", "template"])
async def test_every_reply_trains_once_under_either(qwen3_dir: Path, tmp_path: Path, choice: str) -> None:
    async with (
        engine_for(qwen3_dir) as engine,
        running_sidecar(engine, tmp_path / "state", history_thinking=choice) as running,
    ):
        talk = Conversation(running, "case-23")
        for number in range(TURNS):
            await talk.say(
                user(f"Question {number}?"), reply=f"<think>\nthought {number}\n</think>\n\nYes {number}."
            )
        shown = [number for number in range(TURNS - 1) if f"thought {number}" in talk.sent()]
        assert shown == ([0, 1, 2] if choice == "keep" else [])
        segments = await talk.segments()
        assert len(segments) == (1 if choice == "keep" else TURNS)
        assert {one["extra_info"]["history_thinking"] for one in segments} == {choice}
        trained = [token for one in segments for token in trained_ids(one)]
        assert trained == [token for request in talk.requests for token in request.output_ids]
