"""Differences are named field by field, and the comparison agrees with the fingerprints about what is forgiven."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.tito.differences import FieldDifference, breaking_field, differences, forgiven_differences
from sidecar.tito.fingerprint import LENIENT, MatchRules, exact_form, lenient_form
from sidecar.tito.messages import Call, Message
from sidecar.tito.records import Forgiven
from tests.tito.builders import assistant, call, result, user

EXACT = MatchRules(exact=True)
CLOCK = MatchRules(volatile=(re.compile(r"Now: \S+"),))

some_texts = st.sampled_from(["", "a", "a ", "a\n", "b"])
some_calls = st.builds(
    call, st.sampled_from(["call_1", "call-1", "call_2"]), st.sampled_from(["{}", "{ }", '{"a": 1}', "[1]"])
)
some_messages = st.builds(
    Message,
    st.sampled_from(["user", "assistant"]),
    some_texts,
    st.none() | some_texts,
    st.lists(some_calls, max_size=2).map(tuple),
    st.sampled_from([None, "c_1", "c-1", "c2"]),
    st.none() | st.sampled_from(["n", "m"]),
)


def found(stored: Message, told: Message, rules: MatchRules = LENIENT) -> list[FieldDifference]:
    return list(differences(stored, told, rules))


class TestAgreement:
    @given(some_messages, some_messages)
    def test_messages_are_one_leniently_if_every_difference_is_forgiven(self, one: Message, other: Message) -> None:
        forgiven = all(difference.kind is not None for difference in found(one, other))
        assert (lenient_form(one) == lenient_form(other)) == forgiven
        assert (breaking_field(one, other, LENIENT) is None) == forgiven

    @given(some_messages, some_messages)
    def test_messages_are_one_exactly_if_nothing_differs(self, one: Message, other: Message) -> None:
        same = exact_form(one) == exact_form(other)
        assert same == (found(one, other) == []) == (breaking_field(one, other, EXACT) is None)


class TestForgiven:
    def test_an_identical_replay_needs_no_forgiveness(self) -> None:
        message = assistant("t", call(), reasoning="r")
        assert forgiven_differences(message, message, 3, LENIENT) == []

    def test_every_difference_is_named_with_its_kind(self) -> None:
        stored = assistant("t", call("call_1", '{"a":1}'), call("call_2"), reasoning="r")
        replayed = Message("assistant", "t ", None, (call("call-1", '{"a": 1}'), call("call_2")), name="agent")
        assert forgiven_differences(stored, replayed, 5, LENIENT) == [
            Forgiven(5, "content", "trailing_whitespace"),
            Forgiven(5, "tool_calls[0].function.arguments", "spelling"),
            Forgiven(5, "tool_calls[0].id", "punctuation"),
            Forgiven(5, "reasoning_content", "missing"),
            Forgiven(5, "name", "added"),
        ]

    @pytest.mark.parametrize(
        ("stored", "told", "kind"), [("r", None, "missing"), ("r", "q", "changed"), (None, "r", "added")]
    )
    def test_reasoning_may_be_missing_changed_or_added(
        self, stored: str | None, told: str | None, kind: str
    ) -> None:
        forgiven = forgiven_differences(
            assistant("t", reasoning=stored), assistant("t", reasoning=told), 1, LENIENT
        )
        assert forgiven == [Forgiven(1, "reasoning_content", kind)]

    def test_the_call_that_a_result_answers_may_be_punctuated_otherwise(self) -> None:
        assert forgiven_differences(result("x", "call_1"), result("x", "call-1"), 2, LENIENT) == [
            Forgiven(2, "tool_call_id", "punctuation")
        ]

    def test_volatile_text_is_a_kind_of_its_own(self) -> None:
        stored, told = Message("system", "Be brief. Now: 1"), Message("system", "Be brief. Now: 2")
        assert forgiven_differences(stored, told, 0, CLOCK) == [Forgiven(0, "content", "volatile")]
        spaced = replace(told, content="Be brief. Now: 2\n")
        assert forgiven_differences(stored, spaced, 0, CLOCK) == [Forgiven(0, "content", "trailing_whitespace")]


class TestBreaking:
    def test_the_first_field_that_breaks_a_match_is_named_and_forgiven_ones_are_passed_over(self) -> None:
        stored = assistant("t", call("call_1", '{"a":1}'), reasoning="r")
        for told, field in [
            (replace(stored, role="user"), "role"),
            (replace(stored, content="other", calls=()), "content"),
            (replace(stored, reasoning=None, calls=()), "tool_calls"),
            (replace(stored, calls=(call("call-1", '{"a": 2}'),)), "tool_calls[0].function.arguments"),
            (replace(stored, calls=(call("call_2", '{"a":1}'),)), "tool_calls[0].id"),
            (replace(stored, calls=(Call("call_1", "peek", '{"a":1}', {"a": 1}),)), "tool_calls[0].function.name"),
        ]:
            assert breaking_field(stored, told, LENIENT) == field
        assert breaking_field(result("x", "a"), result("x", "b"), LENIENT) == "tool_call_id"

    def test_under_exact_matching_anything_breaks_but_volatile_text(self) -> None:
        assert breaking_field(assistant("t", reasoning="r"), assistant("t"), EXACT) == "reasoning_content"
        assert breaking_field(user("t"), user("t "), EXACT) == "content"
        exact = MatchRules(exact=True, volatile=CLOCK.volatile)
        assert breaking_field(Message("system", "Now: 1"), Message("system", "Now: 2"), exact) is None
