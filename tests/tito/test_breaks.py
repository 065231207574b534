"""A broken match is explained by the first message and field that no earlier history has."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sidecar.tito.breaks import Place, find_breaks, needed_keys, to_explain
from sidecar.tito.fingerprint import LENIENT, MatchRules
from sidecar.tito.model import Model
from sidecar.tito.records import BreakReason
from tests.tito.builders import TOOLS, wire_call
from tests.tito.talk import Talk

SYSTEM = {"role": "system", "content": "Be brief."}
ASK = {"role": "user", "content": "What is behind the door?"}
MORE = {"role": "user", "content": "Sure?"}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "door"}}\n</tool_call><|im_end|>'


@pytest.fixture
def talk(qwen3: Model) -> Talk:
    return Talk(qwen3)


def explained(talk: Talk) -> dict[str, Place]:
    records = [node.record for node in talk.trajectory]
    blobs = {key: talk.blobs[key] for key in needed_keys(records)}
    found = find_breaks(records, blobs, talk.rules)
    assert list(found) == [record.step_id for record in to_explain(records)]
    return found


def started(talk: Talk, thought: str = "") -> None:
    """Two turns: `step0` and `step1`."""
    talk.ask(SYSTEM, ASK)
    talk.answer(f"{thought}A cat.<|im_end|>")
    talk.ask(MORE)
    talk.answer("Yes.<|im_end|>")


def goes_on(talk: Talk, *wire: dict[str, Any], **options: Any) -> Place:
    """The reason of a further step with another history."""
    talk.wire = [*wire, {"role": "user", "content": "Why?"}]
    talk.ask(**options)
    talk.answer("So.<|im_end|>")
    return explained(talk)["step2"]


class TestRoots:
    def test_an_unbroken_conversation_has_nothing_to_explain(self, talk: Talk) -> None:
        started(talk)
        assert explained(talk) == {}

    def test_another_system_message(self, talk: Talk) -> None:
        started(talk)
        reason = goes_on(talk, {**SYSTEM, "content": "Be long."}, *talk.wire[1:])
        assert reason == (0, "content")

    def test_an_edited_first_message(self, talk: Talk) -> None:
        started(talk)
        reason = goes_on(talk, SYSTEM, {**ASK, "content": "And the window?"}, *talk.wire[2:])
        assert reason == (1, "content")

    def test_a_missing_message_is_seen_at_its_place(self, talk: Talk) -> None:
        started(talk)
        assert goes_on(talk, *talk.wire[1:]) == (0, "role")

    def test_an_edited_first_reply(self, talk: Talk) -> None:
        started(talk)
        wire = [*talk.wire]
        wire[2] = {"role": "assistant", "content": "A dog."}
        assert goes_on(talk, *wire) == (2, "content")

    def test_what_lenient_matching_forgives_is_not_what_broke_the_match(self, talk: Talk) -> None:
        started(talk, "<think>\nI look.\n</think>\n\n")
        wire = [SYSTEM, {**ASK, "content": f"{ASK['content']}\n"}, {"role": "assistant", "content": "A dog."}, MORE]
        assert goes_on(talk, *wire) == (2, "content")

    def test_under_exact_matching_it_is(self, qwen3: Model) -> None:
        talk = Talk(qwen3, rules=MatchRules(exact=True))
        started(talk, "<think>\nI look.\n</think>\n\n")
        wire = [*talk.wire]
        wire[2] = {"role": "assistant", "content": "A cat."}
        assert goes_on(talk, *wire) == (2, "reasoning_content")

    def test_volatile_text_is_passed_over(self, qwen3: Model) -> None:
        talk = Talk(qwen3, rules=MatchRules(volatile=(re.compile("brief|long"),)))
        started(talk)
        wire = [{**SYSTEM, "content": "Be long."}, {**ASK, "content": "Else?"}, *talk.wire[2:]]
        assert goes_on(talk, *wire) == (1, "content")

    def test_other_template_arguments_are_named(self, talk: Talk) -> None:
        started(talk)
        reason = goes_on(talk, *talk.wire, enable_thinking=False)
        assert reason == (None, "chat_template_kwargs.enable_thinking")

    def test_template_arguments_are_compared_as_json(self, talk: Talk) -> None:
        talk.ask(ASK, flag=1)
        talk.answer("A cat.<|im_end|>")
        talk.ask(MORE, flag=True)
        talk.answer("Yes.<|im_end|>")
        assert explained(talk) == {"step1": (None, "chat_template_kwargs.flag")}

    def test_a_second_sample_of_the_same_request_differs_in_nothing(self, talk: Talk) -> None:
        talk.ask(ASK)
        talk.answer("A cat.<|im_end|>")
        talk.answer("A dog.<|im_end|>")
        assert explained(talk) == {"step1": (None, None)}

    def test_a_message_where_an_aborted_step_said_nothing_has_no_equivalent(self, talk: Talk) -> None:
        talk.ask(ASK)
        talk.answer("?<|im_end|>", state="aborted", reply=b"", message_count=1)
        talk.wire = [ASK, {"role": "assistant", "content": "A cat."}, MORE]
        talk.ask()
        talk.answer("Yes.<|im_end|>")
        assert explained(talk) == {"step1": (1, None)}


class TestBranches:
    def test_an_edited_later_reply(self, talk: Talk) -> None:
        started(talk)
        wire = [*talk.wire[:-1], {"role": "assistant", "content": "Repaired."}]
        assert goes_on(talk, *wire) == (4, "content")

    def test_other_arguments_of_a_call(self, talk: Talk) -> None:
        talk.ask(ASK, tools=TOOLS)
        talk.answer("Wait.<|im_end|>")
        talk.ask(MORE, tools=TOOLS)
        talk.answer(CALL)
        identifier = talk.reply.calls[0].id
        for arguments, field in [
            ('{"at": "window"}', "tool_calls[0].function.arguments"),
            ('{"at": "door", "at": "door"}', "tool_calls[0].function.arguments"),
        ]:
            wire = [*talk.wire[:3], {"role": "assistant", "tool_calls": [wire_call(identifier, arguments)]}]
            talk.wire = [*wire, {"role": "tool", "tool_call_id": identifier, "content": "a cat"}]
            talk.ask(tools=TOOLS)
            node = talk.answer("A cat.<|im_end|>")
            assert explained(talk)[node.record.step_id] == (3, field)

    def test_a_dropped_turn_is_a_branch_at_the_next_message(self, talk: Talk) -> None:
        started(talk)
        assert goes_on(talk, *talk.wire[:3]) == (3, "content")

    def test_it_is_compared_with_what_was_said_there_last(self, talk: Talk) -> None:
        started(talk)
        begun = talk.wire[:3]
        for text, place in [("Why?", (3, "role")), ("How?", (3, "content"))]:
            talk.wire = [*begun, {"role": "system", "content": text}]
            talk.ask()
            node = talk.answer("So.<|im_end|>")
            assert explained(talk)[node.record.step_id] == place

    def test_a_second_sample_differs_in_nothing(self, talk: Talk) -> None:
        started(talk)
        talk.wire.pop()
        talk.ask()
        talk.answer("No.<|im_end|>")
        assert explained(talk) == {"step2": (None, None)}

    def test_boundaries_are_explained_where_they_are_planned(self, talk: Talk) -> None:
        started(talk)
        talk.ask({"role": "user", "content": "Why?"}, tools=TOOLS)
        node = talk.answer("So.<|im_end|>")
        assert explained(talk) == {}
        assert node.record.break_reason == BreakReason("tools_changed", None, "tools")

    def test_a_reply_that_was_continued_is_no_branch(self, talk: Talk) -> None:
        talk.ask(ASK)
        talk.answer("A ca")
        talk.ask(continues=True)
        talk.answer("t.<|im_end|>")
        talk.ask(MORE)
        talk.answer("Yes.<|im_end|>")
        assert explained(talk) == {}
        talk.wire = [ASK, {"role": "assistant", "content": "A cap."}, MORE]
        talk.ask()
        talk.answer("Yes.<|im_end|>")
        assert explained(talk) == {"step3": (1, "content")}


def test_only_what_is_asked_for_is_read(talk: Talk) -> None:
    started(talk)
    assert to_explain([node.record for node in talk.trajectory]) == []
    assert find_breaks([], {}, LENIENT) == {}
