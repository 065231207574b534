"""Case 27 (THUDM/slime PR 2287): replayed assistant text may be normalised.

Input: stored "Hello \\n", replayed "Hello". The match level decides, and the audit says what differed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.chat import user
from tests.support.conversation import Conversation
from tests.support.running import engine_for, running_sidecar


@pytest.mark.parametrize("match", ["lenient", "exact"])
async def test_lost_trailing_space(qwen3_dir: Path, tmp_path: Path, match: str) -> None:
    async with (
        engine_for(qwen3_dir) as engine,
        running_sidecar(engine, tmp_path / "state", match=match) as running,
    ):
        talk = Conversation(running, "case-27")
        answer = await talk.say(user("Greet."), reply="Hello \n")
        assert answer["content"] == "Hello \n"
        talk.messages[-1] = {"role": "assistant", "content": "Hello"}
        await talk.say(user("Again."), reply="Hello")
        step = (await talk.steps())[1]
        if match == "lenient":
            assert talk.goes_on_exactly()
            assert step["forgiven"] == [{"message_index": 1, "field": "content", "kind": "trailing_whitespace"}]
        else:
            assert not talk.goes_on_exactly()
            assert step["break_reason"]["message_index"] == 1
            assert step["break_reason"]["field"] == "content"


async def test_other_text_is_another_message_at_any_level(qwen3_dir: Path, tmp_path: Path) -> None:
    async with engine_for(qwen3_dir) as engine, running_sidecar(engine, tmp_path / "state") as running:
        for number, told in enumerate([" Hello", "hello", "Hello  world", "Hello."]):
            talk = Conversation(running, f"case-27-{number}")
            await talk.say(user("Greet."), reply="Hello world" if "world" in told else "Hello")
            talk.messages[-1] = {"role": "assistant", "content": told}
            await talk.say(user("Again."), reply="Hello")
            assert not talk.goes_on_exactly()
