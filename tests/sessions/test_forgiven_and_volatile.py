"""What matching forgives is listed with message, field and kind; volatile text and billing headers do not count."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.chat import user
from tests.support.conversation import Conversation
from tests.support.running import Running, engine_for, running_sidecar

pytestmark = pytest.mark.asyncio(loop_scope="module")
SETTINGS = {"volatile_pattern": [r"Now: [^\n]+", r"request \w{4,8}"]}
THOUGHT = "<think>\nhm\n</think>\n\n"


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def forgiven(step: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [tuple(one.values()) for one in step["forgiven"]]


async def test_differences_in_any_earlier_message_are_in_the_view_and_in_the_segment(shared: Running) -> None:
    talk = Conversation(shared, "audit")
    await talk.say(user("What is it? "), reply=f"{THOUGHT}A cat.")
    await talk.say(user("Sure? "), reply=f"{THOUGHT}Yes.")
    await talk.say(user("Why?"), reply="So.")
    talk.messages[0] = user("What is it?")
    del talk.messages[1]["reasoning_content"]
    del talk.messages[3]["reasoning_content"]
    await talk.say(user("And?"), reply="That is all.")
    found = [forgiven(step) for step in await talk.steps()]
    expected = [
        (0, "content", "trailing_whitespace"),
        (1, "reasoning_content", "missing"),
        (3, "reasoning_content", "missing"),
    ]
    assert found == [[], [], [], expected]
    [segment] = await talk.segments()
    [listed] = segment["extra_info"]["forgiven"]
    assert [tuple(one.values()) for one in listed["differences"]] == expected


async def test_stored_differences_count_after_a_restart(shared: Running, tmp_path: Any) -> None:
    async with running_sidecar(shared.engine, tmp_path / "state") as before:
        talk = Conversation(before, "audit-restart")
        await talk.say(user("What is it?"), reply=f"{THOUGHT}A cat.")
        del talk.messages[-1]["reasoning_content"]
        await talk.say(user("Sure?"), reply=f"{THOUGHT}Yes.")
    async with running_sidecar(shared.engine, tmp_path / "state") as after:
        talk.running = after
        talk.messages[2] = user("Sure? \n")
        del talk.messages[-1]["reasoning_content"]
        await talk.say(user("Why?"), reply="So.")
        assert [forgiven(step) for step in await talk.steps()] == [
            [],
            [(1, "reasoning_content", "missing")],
            [(2, "content", "trailing_whitespace"), (3, "reasoning_content", "missing")],
        ]


async def test_text_that_changes_from_call_to_call_does_not_count_and_the_stored_ids_win(shared: Running) -> None:
    talk = Conversation(shared, "volatile")
    for number, (time, request) in enumerate([("12:01", "a1b2"), ("12:02", "c3d4e5"), ("12:03", "f6f6")]):
        told = system(f"Be brief.\nNow: {time}\nThis is request {request}.")
        talk.messages[:1] = [told]
        await talk.say(user(f"Question {number}?"), reply="Answer.")
    assert len((await shared.view("volatile"))["steps"]) == 3
    assert all(talk.goes_on_exactly(index) for index in (1, 2))
    assert "Now: 12:01" in talk.sent()
    assert "12:03" not in talk.sent()
    assert [forgiven(step) for step in await talk.steps()] == [[], [(0, "content", "volatile")], []]


async def test_the_rest_of_the_system_message_and_all_other_messages_count(shared: Running) -> None:
    talk = Conversation(shared, "volatile-rest", [system("Be brief.\nNow: 12:01")])
    await talk.say(user("Now: 12:01"), reply="Answer.")
    talk.messages[0] = system("Be long.\nNow: 12:01")
    await talk.say(user("More?"), reply="Answer.")
    talk.messages = [system("Be brief.\nNow: 12:01"), user("Now: 12:02"), *talk.messages[2:]]
    await talk.say(user("More?"), reply="Answer.")
    view = await shared.view("volatile-rest")
    assert view["lineages"] == 3


async def test_a_compaction_is_known_though_the_clock_in_its_system_message_went_on(shared: Running) -> None:
    talk = Conversation(shared, "volatile-compaction", [system("Be brief.\nNow: 12:01")])
    await talk.say(user("What is it?"), reply="A cat.")
    talk.messages = [system("Be brief.\nNow: 13:00")]
    await talk.say(user("So far: a cat."), reply="Fine.")
    reply = await shared.finalize(talk.session)
    assert reply["history_rewritten"] is True


@pytest.mark.parametrize("match", ["lenient", "exact"])
async def test_it_does_not_count_under_exact_matching_either(qwen3_dir: Any, tmp_path: Any, match: str) -> None:
    settings = {"match": match, "volatile_pattern": r"Now: \S+"}
    async with (
        engine_for(qwen3_dir) as engine,
        running_sidecar(engine, tmp_path / "state", **settings) as running,
    ):
        talk = Conversation(running, "volatile-exact", [system("Now: 1")])
        await talk.say(user("What is it?"), reply="A cat.")
        talk.messages[0] = system("Now: 2")
        await talk.say(user("Sure?"), reply="Yes.")
        assert talk.goes_on_exactly()
        talk.messages[1] = user("What is it? ")
        await talk.say(user("Why?"), reply="So.")
        assert (await running.view("volatile-exact"))["lineages"] == (1 if match == "lenient" else 2)


async def test_a_billing_header_is_stripped_before_matching_and_rendering_and_counted(shared: Running) -> None:
    talk = Conversation(shared, "billing")
    for number, mark in enumerate(["36ee5", "0aaa9"]):
        header = f"x-anthropic-billing-header: cc_version=2.1.37; cc_entrypoint=cli; cch={mark};"
        blocks = [{"type": "text", "text": header}, {"type": "text", "text": "You are a coder."}]
        talk.messages[:1] = [{"role": "system", "content": blocks}]
        await talk.say(user(f"Question {number}?"), reply="Answer.")
    assert talk.goes_on_exactly()
    assert talk.sent(0).startswith("<|im_start|>system\nYou are a coder.<|im_end|>")
    assert [step["extra"]["stripped"] for step in await talk.steps()] == [{"billing_header": 1}] * 2
    assert [step["forgiven"] for step in await talk.steps()] == [[], []]


async def test_a_conversation_without_such_lines_counts_none(shared: Running) -> None:
    talk = Conversation(shared, "billing-none")
    await talk.say(system("Be brief."), user("x-anthropic-billing-header: y"), reply="Answer.")
    assert "stripped" not in (await talk.steps())[0]["extra"]
    assert "x-anthropic-billing-header: y" in talk.sent()
