"""Case 32 (PrimeIntellect-ai/renderers issue 47, PR 52): `True` and `False` were rejected where JSON was expected,
while SGLang lower-cases them.

Input: `<parameter=include_files>True</parameter>`, schema boolean. One parser decides, with the same answer
streamed, whole, in a retry, and after an interruption. (The case wants SGLang's parser; ours gives its answer
for the booleans and keeps what is none as text.)
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import ask, completion, payloads
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")
SETTINGS = {"tool_call_parser": "qwen3_coder"}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "list",
        "parameters": {
            "type": "object",
            "properties": {"include_files": {"type": "boolean"}, "pattern": {"type": "string"}},
        },
    },
}


def call(value: str) -> str:
    arguments = f"<parameter=include_files>\n{value}\n</parameter>\n<parameter=pattern>\n{value}\n</parameter>\n"
    return f"<tool_call>\n<function=list>\n{arguments}</function>\n</tool_call>"


async def arguments_of(shared: Running, session: str, *, stream: bool, **headers: str) -> Any:
    response = await shared.chat(session, ask(tools=[TOOL], stream=stream), **headers)
    if not stream:
        choice = completion(response).choices[0]
        assert choice.finish_reason == "tool_calls"
        [made] = choice.message.tool_calls or ()
        return json.loads(made.function.arguments)  # type: ignore[union-attr]
    chunks = [chunk for chunk in payloads(response.text) if chunk != "[DONE]"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    calls = [made for chunk in chunks for made in chunk["choices"][0]["delta"].get("tool_calls") or ()]
    return json.loads("".join(made["function"]["arguments"] for made in calls))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("written", "read"), [("True", True), ("true", True), ("False", False), ("false", False), ("yes", "yes")]
)
async def test_a_boolean_is_one_and_the_same_text_in_a_string_is_text(
    shared: Running, written: str, read: object, stream: bool
) -> None:
    shared.engine.replies.append(Reply(text=call(written)))
    found = await arguments_of(shared, f"case-32-{written}-{stream}", stream=stream)
    assert found == {"include_files": read, "pattern": written}
    assert type(found["include_files"]) is type(read)


async def test_a_retry_gets_the_same_types(shared: Running) -> None:
    shared.engine.replies.append(Reply(text=call("True")))
    first = await arguments_of(shared, "case-32-retry", stream=False)
    again = await arguments_of(shared, "case-32-retry", stream=False, x_stainless_retry_count="1")
    assert first == again == {"include_files": True, "pattern": "True"}
    assert len(shared.engine.requests) == 1


async def test_an_interrupted_call_gets_the_same_types(shared: Running) -> None:
    hold = asyncio.Event()
    shared.engine.replies.append(Reply(text=call("True"), hold=hold, hold_after=20, chunk_tokens=1))
    running = asyncio.ensure_future(arguments_of(shared, "case-32-interrupted", stream=False))
    await shared.engine.wait_until(lambda: bool(shared.engine.requests))
    await shared.engine.wait_tokens(shared.engine.requests[0], 20)
    await shared.post("/v1/rollout/pause")
    await shared.post("/v1/rollout/resume")
    hold.set()
    assert await running == {"include_files": True, "pattern": "True"}
    assert len(shared.engine.requests) == 2
