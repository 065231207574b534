"""Everything that lenient matching lets pass is listed, once per lineage, on the step where it was told first."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sidecar.tito import audit as audit_module
from sidecar.tito.fingerprint import MatchRules
from sidecar.tito.model import Model
from sidecar.tito.records import Forgiven
from tests.tito.builders import TOOLS
from tests.tito.talk import Talk

SYSTEM = {"role": "system", "content": "Be brief."}
ASK = {"role": "user", "content": "What is behind the door? "}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "door"}}\n</tool_call><|im_end|>'


def more(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"Question {number}? "}


@pytest.fixture
def talk(qwen3: Model) -> Talk:
    return Talk(qwen3)


def turn(talk: Talk, number: int, thought: str = "hm") -> None:
    talk.ask(more(number))
    talk.answer(f"<think>\n{thought}\n</think>\n\nAnswer {number}.<|im_end|>")


class TestEarlierMessages:
    def test_trailing_space_lost_from_an_earlier_user_message_is_listed(self, talk: Talk) -> None:
        for number in range(3):
            turn(talk, number)
        assert talk.forgiven == ()
        talk.wire[2] = {"role": "user", "content": "Question 1?"}
        turn(talk, 3)
        assert talk.placement.parent is not None
        assert talk.forgiven == (Forgiven(2, "content", "trailing_whitespace"),)

    def test_reasoning_lost_from_an_earlier_reply_is_listed(self, talk: Talk) -> None:
        for number in range(3):
            turn(talk, number)
        del talk.wire[1]["reasoning_content"]
        turn(talk, 3)
        assert talk.forgiven == (Forgiven(1, "reasoning_content", "missing"),)

    def test_a_results_call_id_may_be_punctuated_otherwise_later(self, talk: Talk) -> None:
        talk.ask(ASK, tools=TOOLS)
        talk.answer(CALL)
        identifier = talk.reply.calls[0].id
        talk.ask({"role": "tool", "tool_call_id": identifier, "content": "a cat"}, tools=TOOLS)
        talk.answer("A cat.<|im_end|>")
        plain = identifier.replace("_", "")
        talk.wire[1]["tool_calls"][0]["id"] = plain
        talk.wire[2]["tool_call_id"] = plain
        talk.ask(more(1), tools=TOOLS)
        assert talk.forgiven == (
            Forgiven(1, "tool_calls[0].id", "punctuation"),
            Forgiven(2, "tool_call_id", "punctuation"),
        )

    def test_messages_are_numbered_as_they_are_stored(self, talk: Talk) -> None:
        """Leading system messages are one."""
        talk.ask(SYSTEM, {"role": "developer", "content": "Be kind."}, ASK)
        talk.answer("A cat.<|im_end|>")
        talk.wire[2] = {**ASK, "content": ASK["content"].strip()}
        talk.ask(more(1))
        assert talk.forgiven == (Forgiven(1, "content", "trailing_whitespace"),)

    def test_only_messages_that_differ_are_read_and_replies_are_at_hand(self, talk: Talk) -> None:
        for number in range(3):
            turn(talk, number)
        talk.wire[2] = {"role": "user", "content": "Question 1?"}
        del talk.wire[3]["reasoning_content"]
        talk.ask(more(3))
        assert [one.message_index for one in talk.placement.retold] == [2, 3]
        assert audit_module.missing_keys(talk.placement.retold) == [talk.placement.retold[0].stored.key]


class TestOnce:
    def test_a_client_that_drops_all_reasoning_is_noted_once_per_reply(self, talk: Talk) -> None:
        listed = []
        for number in range(4):
            turn(talk, number)
            listed.append(talk.forgiven)
            del talk.wire[-1]["reasoning_content"]
        missing = [(Forgiven(2 * number + 1, "reasoning_content", "missing"),) for number in range(3)]
        assert listed == [(), *missing]

    def test_what_an_earlier_step_lists_is_not_listed_again_when_something_else_changes(self, talk: Talk) -> None:
        turn(talk, 0)
        del talk.wire[-1]["reasoning_content"]
        turn(talk, 1)
        talk.wire[2] = {"role": "user", "content": "Question 1?"}
        turn(talk, 2)
        assert talk.forgiven == (Forgiven(2, "content", "trailing_whitespace"),)

    def test_a_telling_that_becomes_whole_again_needs_no_forgiveness(self, talk: Talk) -> None:
        turn(talk, 0)
        whole = dict(talk.wire[-1])
        del talk.wire[-1]["reasoning_content"]
        turn(talk, 1)
        talk.wire[1] = whole
        turn(talk, 2)
        assert talk.forgiven == ()

    def test_nothing_is_compared_while_the_telling_stays_the_same(
        self, talk: Talk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(3):
            turn(talk, number)
        monkeypatch.setattr(audit_module, "history_of", None)
        turn(talk, 3)
        assert len(talk.trajectory.roots) == 1


class TestVolatile:
    RULES = MatchRules(volatile=(re.compile(r"Now: \S+"),))

    def asked(self, talk: Talk, time: str, number: int) -> tuple[Forgiven, ...]:
        system = {"role": "system", "content": f"Be brief.\nNow: {time}"}
        if talk.wire:
            talk.wire[0] = system
        else:
            talk.wire.append(system)
        turn(talk, number)
        return talk.forgiven

    @pytest.mark.parametrize("exact", [False, True])
    def test_changed_volatile_text_is_listed_once_and_the_stored_ids_win(self, qwen3: Model, exact: bool) -> None:
        talk = Talk(qwen3, rules=MatchRules(exact=exact, volatile=self.RULES.volatile))
        listed = [
            self.asked(talk, time, number) for number, time in enumerate(["12:01", "12:01", "12:02", "12:03"])
        ]
        assert listed == [(), (), (Forgiven(0, "content", "volatile"),), ()]
        assert len(talk.trajectory.roots) == 1
        assert "Now: 12:01" in talk.sent()
        assert "12:03" not in talk.sent()

    def test_lost_space_and_changed_time_are_told_apart(self, qwen3: Model) -> None:
        talk = Talk(qwen3, rules=self.RULES)
        self.asked(talk, "12:01", 0)
        talk.wire[1] = {"role": "user", "content": "Question 0?"}
        assert set(self.asked(talk, "12:02", 1)) == {
            Forgiven(0, "content", "volatile"),
            Forgiven(1, "content", "trailing_whitespace"),
        }

    def test_without_the_pattern_the_same_calls_are_roots(self, qwen3: Model) -> None:
        talk = Talk(qwen3)
        for number, time in enumerate(["12:01", "12:02"]):
            self.asked(talk, time, number)
        assert len(talk.trajectory.roots) == 2
