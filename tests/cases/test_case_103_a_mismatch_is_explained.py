"""Case 103 (areal-project/AReaL PRs 1458 and 1628): volatile metadata and lists of content blocks break prefix
matching; the answer there is pluggable preprocessors, and dumps of what did not match.

Here: block lists are one text, `--volatile-pattern` names what does not count, and `GET /session/{id}` names
the first message and field that differ.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.chat import user
from tests.support.conversation import Conversation
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")
SETTINGS = {"volatile_pattern": r"\[trace [0-9a-f]+\]"}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


async def test_named_metadata_and_block_lists_match(shared: Running) -> None:
    talk = Conversation(shared, "case-103", [system("Be brief. [trace 1a]")])
    await talk.say(user("What is it?"), reply="A cat.")
    talk.messages[0] = {"role": "system", "content": [{"type": "text", "text": "Be brief. [trace 2b]"}]}
    talk.messages[1] = {"role": "user", "content": [{"type": "text", "text": "What is it?"}]}
    await talk.say(user("Sure?"), reply="Yes.")
    assert talk.goes_on_exactly()
    assert (await talk.steps())[1]["forgiven"] == [{"message_index": 0, "field": "content", "kind": "volatile"}]


async def test_the_first_differing_field_of_a_mismatch_is_named(shared: Running) -> None:
    talk = Conversation(shared, "case-103-unnamed", [system("Be brief. [request 1a]")])
    await talk.say(user("What is it?"), reply="A cat.")
    talk.messages[0] = system("Be brief. [request 2b]")
    talk.messages[1] = user("What is that?")
    await talk.say(user("Sure?"), reply="Yes.")
    assert not talk.goes_on_exactly()
    assert (await talk.steps())[1]["break_reason"] == {
        "segment_reason": "root",
        "message_index": 0,
        "field": "content",
    }
