"""Which step a request continues, through the running sidecar: tools, foreign turns, siblings, sub-agents."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.chat import Held, ask, completion, tool, user
from tests.support.conversation import Conversation, trained_ids
from tests.support.running import Running, engine_for, running_sidecar

pytestmark = pytest.mark.asyncio(loop_scope="module")
SYSTEM = {"role": "system", "content": "Be brief."}


def sampled(talk: Conversation, *indexes: int) -> list[int]:
    return [token for index in indexes for token in talk.requests[index].output_ids]


async def test_another_tool_list_keeps_the_parent_and_renders_the_prompt_in_full(shared: Running) -> None:
    talk = Conversation(shared, "tools")
    await talk.say(user("Look."), reply="Where?", tools=[tool("look")])
    await talk.say(user("There."), reply="A cat.", tools=[tool("peek")])
    first, second = await talk.steps()
    assert (second["parent"], second["segment_reason"]) == (first["step_id"], "tools_changed")
    assert '"peek"' in talk.sent()
    assert '"look"' not in talk.sent()
    segments = await talk.segments()
    assert [one["extra_info"]["segment_reason"] for one in segments] == ["root", "tools_changed"]
    assert [one["finish_reason"] for one in segments] == ["segment_boundary", "stop"]
    assert [trained_ids(one) for one in segments] == [sampled(talk, 0), sampled(talk, 1)]


async def test_the_same_tools_in_another_key_order_are_the_same(shared: Running) -> None:
    talk = Conversation(shared, "tools-order")
    await talk.say(user("Look."), reply="Where?", tools=[tool()])
    reordered = dict(reversed(list(tool().items())))
    await talk.say(user("There."), reply="A cat.", tools=[reordered])
    assert [step["segment_reason"] for step in await talk.steps()] == ["root", None]


async def test_a_hit_with_equal_tools_is_preferred(shared: Running) -> None:
    """Two samples with one text, each with other tools: the one whose tools the request has is continued."""
    talk = Conversation(shared, "tools-preferred")
    for tools in ([tool("look")], [tool("peek")]):
        talk.messages = []
        await talk.say(user("Look."), reply="Where?", tools=tools)
    await talk.say(user("There."), reply="A cat.", tools=[tool("look")])
    steps = await talk.steps()
    assert steps[2]["parent"] == steps[0]["step_id"]
    assert steps[2]["segment_reason"] is None


async def test_tools_that_the_template_does_not_print_are_no_boundary(smollm2_dir: Any, tmp_path: Any) -> None:
    """Such a template has no tools at all, so the request with them is refused instead; nothing is stored."""
    async with engine_for(smollm2_dir) as engine, running_sidecar(engine, tmp_path / "state") as running:
        talk = Conversation(running, "no-tools")
        await talk.say(user("Look."), reply="Where?")
        response = await running.chat("no-tools", ask(tools=[tool()]))
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "tools"
        assert len(await talk.steps()) == 1


async def test_a_foreign_assistant_turn_is_context_and_the_original_trains_as_its_own_leaf(shared: Running) -> None:
    talk = Conversation(shared, "foreign")
    await talk.say(SYSTEM, user("What is it?"), reply="A cat.")
    await talk.say(user("Sure?"), reply="Yes indeed, it is.")
    talk.messages[-1] = {"role": "assistant", "content": "Yes."}
    await talk.say(user("Why?"), reply="It meows.")
    first, second, third = await talk.steps()
    assert (second["parent"], third["parent"]) == (first["step_id"], first["step_id"])
    original, anchor = await talk.segments()
    assert trained_ids(original) == sampled(talk, 1)
    assert trained_ids(anchor) == sampled(talk, 0, 2)
    assert "Yes.<|im_end|>\n<|im_start|>user\nWhy?" in talk.sent()
    assert "indeed" not in talk.sent()
    assert anchor["extra_info"]["segment_reason"] == "branch"
    assert anchor["extra_info"]["branch_from_step_id"] == first["step_id"]


async def test_a_turn_that_no_step_made_can_be_put_into_a_history(shared: Running) -> None:
    """Few-shot examples: assistant messages before the first step are context of the root."""
    talk = Conversation(shared, "few-shot", [SYSTEM, user("1+1?"), {"role": "assistant", "content": "2"}])
    await talk.say(user("2+2?"), reply="4")
    await talk.say(user("3+3?"), reply="6")
    assert talk.goes_on_exactly()
    [segment] = await talk.segments()
    assert trained_ids(segment) == sampled(talk, 0, 1)


async def test_calls_of_one_session_run_at_the_same_time_and_become_siblings(shared: Running) -> None:
    talk = Conversation(shared, "concurrent")
    await talk.say(SYSTEM, user("What is it?"), reply="A cat.")
    held = [Held(text=f"Number {number} of the replies that are held") for number in range(3)]
    shared.engine.replies.extend(one.reply() for one in held)
    bodies = [{"model": "m", "messages": [*talk.messages, user(f"Branch {number}")]} for number in range(3)]
    calls = []
    for number, (body, one) in enumerate(zip(bodies, held, strict=True)):
        calls.append(asyncio.ensure_future(shared.chat(talk.session, body)))
        await one.reached(shared.engine, number + 1)
    for number in (2, 0, 1):  # they end in another order than they began in
        held[number].open.set()
        completion(await calls[number])
    first, *rest = await talk.steps()
    assert [step["parent"] for step in rest] == [first["step_id"]] * 3
    for request in talk.requests[1:]:
        ids = talk.requests[0].input_ids + talk.requests[0].output_ids
        assert request.input_ids[: len(ids)] == ids
    segments = await talk.segments()
    trained = [token for segment in segments for token in trained_ids(segment)]
    assert sorted(trained) == sorted(sampled(talk, 0, 1, 2, 3))


async def test_a_sub_agent_has_a_lineage_of_its_own_and_never_the_anchor(shared: Running) -> None:
    main = Conversation(shared, "sub-agent")
    sub = Conversation(shared, "sub-agent", [{"role": "system", "content": "You search."}])
    await main.say(SYSTEM, user("What is it?"), reply="Let me ask.")
    await sub.say(user("Find it."), reply="Searching.")
    await main.say(user("Go on."), reply="A cat.")
    await sub.say(user("And?"), reply="Found: a cat.")  # the last step of the session
    view = await shared.view("sub-agent")
    assert view["lineages"] == 2
    side, anchor = await main.segments()
    assert [one["extra_info"]["is_anchor"] for one in (side, anchor)] == [False, True]
    assert trained_ids(anchor) == sampled(main, 0, 2)
    assert trained_ids(side) == sampled(main, 1, 3)


async def test_a_compaction_goes_on_with_the_main_lineage_in_a_new_segment(shared: Running) -> None:
    talk = Conversation(shared, "compaction")
    await talk.say(SYSTEM, user("What is it?"), reply="A cat.")
    await talk.say(user("Sure?"), reply="Yes.")
    talk.messages = [SYSTEM]
    await talk.say(user("So far: we found a cat."), reply="Then feed it.")
    await talk.say(user("Done."), reply="Good.")
    assert talk.goes_on_exactly()
    reply = await shared.finalize(talk.session, reward=1.0)
    assert (reply["num_segments"], reply["num_turns"], reply["history_rewritten"]) == (2, 4, True)
    before, anchor = await talk.segments()
    assert (before["extra_info"]["segment_reason"], anchor["extra_info"]["segment_reason"]) == (
        "root",
        "history_rewrite",
    )
    assert (before["reward"], anchor["reward"]) == (None, 1.0)
    assert trained_ids(anchor) == sampled(talk, 2, 3)


async def test_a_summary_call_that_ends_before_the_agent_goes_on_is_a_branch_of_its_own(shared: Running) -> None:
    talk = Conversation(shared, "summary")
    await talk.say(SYSTEM, user("What is it?"), reply="A cat.")
    side = Conversation(shared, "summary", list(talk.messages))
    await side.say(user("Sum up."), reply="Cats.")
    await talk.say(user("Sure?"), reply="Yes.")
    summary, anchor = await talk.segments()
    assert trained_ids(summary) == sampled(talk, 1)
    assert trained_ids(anchor) == sampled(talk, 0, 2)


@pytest.mark.parametrize("match", ["lenient", "exact"])
async def test_of_two_samples_with_one_text_the_one_that_was_told_exactly_is_continued(
    qwen3_dir: Any, tmp_path: Any, match: str
) -> None:
    async with (
        engine_for(qwen3_dir) as engine,
        running_sidecar(engine, tmp_path / "state", match=match) as running,
    ):
        talk = Conversation(running, "twins")
        for thought in ("first", "second"):
            talk.messages = []
            await talk.say(user("What is it?"), reply=f"<think>\n{thought}\n</think>\n\nA cat.")
        talk.messages[-1]["reasoning_content"] = "first"
        await talk.say(user("Sure?"), reply="Yes.")
        first, second, third = await talk.steps()
        assert third["parent"] == first["step_id"]
        del talk.messages[1]["reasoning_content"]
        await talk.say(user("Why?"), reply="So.")
        fourth = (await talk.steps())[3]
        if match == "lenient":
            assert fourth["parent"] == third["step_id"]
        else:
            assert fourth["parent"] is None
        assert second["delivered"]


async def test_of_two_samples_told_alike_the_last_delivered_one_is_continued(shared: Running) -> None:
    """Told without the reasoning that tells them apart."""
    talk = Conversation(shared, "twins-alike")
    for thought in ("first", "second"):
        talk.messages = []
        await talk.say(user("What is it?"), reply=f"<think>\n{thought}\n</think>\n\nA cat.")
    del talk.messages[-1]["reasoning_content"]
    await talk.say(user("Sure?"), reply="Yes.")
    _, second, third = await talk.steps()
    assert third["parent"] == second["step_id"]
    assert "<think>\nsecond" in talk.sent()


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        ('{"b": 1, "a": 2}', '{"a":2,"b":1}'),
        ("{}", ""),
    ],
)
async def test_arguments_that_a_harness_writes_anew_do_not_break_the_match(
    shared: Running, stored: str, told: str
) -> None:
    talk = Conversation(shared, f"arguments-{len(stored)}", fields={"tools": [tool()]})
    await talk.say(user("Look."), reply=f'<tool_call>\n{{"name": "look", "arguments": {stored}}}\n</tool_call>')
    call = talk.messages[-1]["tool_calls"][0]
    call["function"]["arguments"] = told
    await talk.say({"role": "tool", "tool_call_id": call["id"], "content": "a cat"}, reply="A cat.")
    assert talk.goes_on_exactly()
    assert len((await shared.view(talk.session))["steps"]) == 2
