"""Case 25 (ggml-org/llama.cpp PR 24985, issue 24181): the parser keeps the newlines at the end of the
reasoning, and rendering doubles them. Named there: template(history) + raw output == template(history +
message), or own ids.

Input: reasoning that ends in two newlines. Own ids make it hold by construction, whatever the parser shows.
"""

from __future__ import annotations

import pytest

from tests.support.chat import user
from tests.support.conversation import Conversation
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\n\n\n", " \n\t\n"])
async def test_what_was_sampled_is_what_the_next_prompt_has(shared: Running, end: str) -> None:
    raw = f"<think>\nA thought.{end}</think>\n\nA cat."
    talk = Conversation(shared, f"case-25-{len(end)}-{end.count(' ')}")
    answer = await talk.say(user("What is it?"), reply=raw)
    assert (answer["reasoning_content"].strip(), answer["content"]) == ("A thought.", "A cat.")
    first = talk.sent(0)
    await talk.say(user("Sure?"), reply="Yes.")
    assert talk.goes_on_exactly()
    assert talk.sent().startswith(f"{first}{raw}<|im_end|>\n<|im_start|>user\nSure?")
