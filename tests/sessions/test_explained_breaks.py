"""`GET /session/{id}` says for each new root or branch which message and field broke the match."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.chat import tool, user
from tests.support.conversation import Conversation
from tests.support.running import Running, running_sidecar

pytestmark = pytest.mark.asyncio(loop_scope="module")
SYSTEM = {"role": "system", "content": "Be brief."}


async def two_turns(shared: Running, session: str, **fields: Any) -> Conversation:
    """Steps 0 and 1."""
    talk = Conversation(shared, session, fields=fields)
    await talk.say(SYSTEM, user("What is it?"), reply="<think>\nhm\n</think>\n\nA cat.")
    await talk.say(user("Sure?"), reply="Yes.")
    return talk


async def reasons(talk: Conversation) -> list[Any]:
    """`(segment_reason, message_index, field)` of all steps, None where nothing broke."""
    found = [step["break_reason"] for step in await talk.steps()]
    return [reason and tuple(reason.values()) for reason in found]


async def test_a_conversation_without_a_break_has_no_reasons(shared: Running) -> None:
    talk = await two_turns(shared, "breaks-none")
    assert await reasons(talk) == [None, None]
    assert [step["segment_reason"] for step in await talk.steps()] == ["root", None]


@pytest.mark.parametrize(
    ("index", "changed", "reason"),
    [
        (0, {"content": "Be long."}, ("root", 0, "content")),
        (1, {"role": "assistant"}, ("history_rewrite", 1, "role")),
        (2, {"content": "A dog."}, ("history_rewrite", 2, "content")),
        (4, {"content": "Repaired."}, ("branch", 4, "content")),
    ],
)
async def test_an_edit_of_the_history_is_named(
    shared: Running, index: int, changed: dict[str, Any], reason: Any
) -> None:
    talk = await two_turns(shared, f"breaks-{index}")
    talk.messages[index] = {**talk.messages[index], **changed}
    await talk.say(user("Why?"), reply="So.")
    assert await reasons(talk) == [None, None, reason]


async def test_a_repaired_call_is_named_down_to_its_arguments(shared: Running) -> None:
    talk = Conversation(shared, "breaks-call", fields={"tools": [tool()]})
    await talk.say(user("Look."), reply='<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>')
    call = talk.messages[-1]["tool_calls"][0]
    call["function"]["arguments"] = '{"at": 2}'
    await talk.say({"role": "tool", "tool_call_id": call["id"], "content": "a cat"}, reply="A cat.")
    assert await reasons(talk) == [None, ("root", 1, "tool_calls[0].function.arguments")]


async def test_changed_tools_and_template_arguments_are_fields_of_the_request(shared: Running) -> None:
    talk = await two_turns(shared, "breaks-request")
    await talk.say(user("Why?"), reply="So.", tools=[tool()])
    await talk.say(user("And?"), reply="So.", chat_template_kwargs={"enable_thinking": False})
    assert (await reasons(talk))[2:] == [
        ("tools_changed", None, "tools"),
        ("history_rewrite", None, "chat_template_kwargs.enable_thinking"),
    ]


async def test_a_compaction_is_told_from_a_side_call(shared: Running) -> None:
    talk = await two_turns(shared, "breaks-compaction")
    side = Conversation(shared, talk.session, [{"role": "system", "content": "Make titles."}])
    await side.say(user("What is it?"), reply="Cats")
    talk.messages = [SYSTEM]
    await talk.say(user("So far: a cat."), reply="Fine.")
    assert (await reasons(talk))[2:] == [("root", 0, "content"), ("history_rewrite", 1, "content")]


async def test_a_second_sample_of_one_request_differs_in_nothing(shared: Running) -> None:
    talk = await two_turns(shared, "breaks-sample")
    talk.messages.pop()
    await talk.say(reply="No.")
    assert (await reasons(talk))[2:] == [("branch", None, None)]


async def test_a_template_that_was_changed_between_two_processes_is_named(
    shared: Running, tmp_path: Any, qwen3_dir: Any
) -> None:
    import json

    source = json.loads((qwen3_dir / "tokenizer_config.json").read_text())["chat_template"]
    (tmp_path / "t.jinja").write_text(source + "{# another #}")
    async with running_sidecar(shared.engine, tmp_path / "state") as before:
        talk = await two_turns(before, "breaks-template")
    async with running_sidecar(shared.engine, tmp_path / "state", chat_template=tmp_path / "t.jinja") as after:
        talk.running = after
        await talk.say(user("Why?"), reply="So.")
        assert await reasons(talk) == [None, None, ("template_changed", None, "chat_template")]


async def test_reasons_are_found_once_and_again_after_a_restart(shared: Running, tmp_path: Any) -> None:
    async with running_sidecar(shared.engine, tmp_path / "state") as before:
        talk = await two_turns(before, "breaks-restart")
        talk.messages[2] = {"role": "assistant", "content": "A dog."}
        await talk.say(user("Why?"), reply="So.")
        first, second = await reasons(talk), ("history_rewrite", 6, "content")
        assert await reasons(talk) == first
        talk.messages[6] = {"role": "assistant", "content": "Repaired."}
        await talk.say(user("Really?"), reply="So.")
        assert await reasons(talk) == [*first, second]
    async with running_sidecar(shared.engine, tmp_path / "state") as after:
        talk.running = after
        assert await reasons(talk) == [*first, second]


async def test_an_aborted_step_and_a_finalized_session_are_explained_too(shared: Running) -> None:
    talk = await two_turns(shared, "breaks-finalized")
    talk.messages[0] = {"role": "system", "content": "Be long."}
    await talk.say(user("Why?"), reply="So.")
    await talk.segments()
    assert (await reasons(talk))[2:] == [("root", 0, "content")]
