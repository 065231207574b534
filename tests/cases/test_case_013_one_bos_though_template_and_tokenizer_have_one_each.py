"""Case 13 (OpenRLHF issue 393, sgl-project/sglang PR 8291, transformers issue 37686, huggingface/open-r1 PR
462): the template prints BOS, and encoding its text adds another.

Input: Llama 3.1 and `[{"role": "user", "content": "test"}]`, rendered and encoded: 128000, 128000.
"""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer

from tests.support.chat import user
from tests.support.conversation import Conversation
from tests.support.npm import npm_tokenizer
from tests.support.substitute import served

BOS = 128000


async def test_there_is_one(tmp_path: Path) -> None:
    directory = npm_tokenizer("llama3_1")
    reference = AutoTokenizer.from_pretrained(directory)
    messages = [{"role": "user", "content": "test"}]
    text = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert reference.encode(text)[:2] == [BOS, BOS]
    async with served(directory, tmp_path / "state", "<|eot_id|>") as running:
        talk = Conversation(running, "case-13")
        await talk.say(user("test"), reply="Yes.")
        assert talk.requests[0].input_ids == reference.encode(text, add_special_tokens=False)
        await talk.say(user("again"), reply="Yes.")
        assert talk.goes_on_exactly()
        assert talk.requests[1].input_ids.count(BOS) == 1
        assert talk.requests[1].input_ids[0] == BOS
