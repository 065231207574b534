"""Messages come to one canonical form, and what cannot is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.tito.errors import MessageError
from sidecar.tito.messages import Message, bare_id, from_wire, normalise, parse_arguments
from tests.tito.builders import assistant, call, result, wire_call

USER = {"role": "user", "content": "q"}


def calling(*identifiers: str | None) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [wire_call(i) for i in identifiers]}


def answer(identifier: str | None, text: str) -> dict[str, Any]:
    message = {"role": "tool", "content": text}
    return message if identifier is None else {**message, "tool_call_id": identifier}


def results_of(*messages: dict[str, Any]) -> list[str]:
    return [message.content for message in normalise([USER, *messages]) if message.role == "tool"]


class TestContent:
    @pytest.mark.parametrize("shape", [{"content": None}, {"content": ""}, {"content": []}, {}])
    def test_null_empty_and_absent_content_are_one_value(self, shape: dict[str, Any]) -> None:
        message = {"role": "assistant", "tool_calls": [wire_call("a")], **shape}
        assert from_wire(message, "messages[0]") == assistant("", call("a", "{}"))

    def test_text_parts_are_joined_and_their_other_keys_ignored(self) -> None:
        parts = [
            {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
            {"type": "input_text", "text": "b"},
            {"type": "output_text", "text": "c"},
        ]
        assert from_wire({"role": "user", "content": parts}, "m").content == "abc"

    def test_a_part_that_is_no_text_is_refused_with_its_position(self) -> None:
        parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]
        with pytest.raises(MessageError, match=r"messages\[1\].content\[1\].type is 'image_url'") as caught:
            normalise([USER, {"role": "user", "content": parts}])
        assert caught.value.param == "messages[1].content[1].type"

    def test_reasoning_is_read_from_either_field_and_empty_reasoning_is_none(self) -> None:
        assert from_wire({"role": "assistant", "reasoning_content": "r"}, "m").reasoning == "r"
        assert from_wire({"role": "assistant", "reasoning": "r"}, "m").reasoning == "r"
        assert from_wire({"role": "assistant", "reasoning_content": ""}, "m").reasoning is None


class TestRoles:
    def test_developer_is_system(self) -> None:
        assert from_wire({"role": "developer", "content": "d"}, "m") == Message("system", "d")

    @pytest.mark.parametrize("role", ["function", "", "User"])
    def test_an_unknown_role_is_refused_with_the_known_ones(self, role: str) -> None:
        with pytest.raises(
            MessageError, match="known roles are system, user, assistant, tool, developer"
        ) as caught:
            normalise([USER, {"role": role, "content": "x"}])
        assert caught.value.param == "messages[1].role"

    def test_leading_system_messages_are_folded_into_one(self) -> None:
        wire = [{"role": "system", "content": "a"}, {"role": "developer", "content": "b"}, USER]
        assert normalise(wire) == [Message("system", "a\n\nb"), Message("user", "q")]

    def test_a_later_system_message_stays_where_it_is(self) -> None:
        wire = [{"role": "system", "content": "a"}, USER, {"role": "system", "content": "b"}]
        assert [message.content for message in normalise(wire)] == ["a", "q", "b"]

    def test_a_conversation_of_system_messages_alone_is_folded_too(self) -> None:
        assert normalise([{"role": "system", "content": "a"}, {"role": "system", "content": "b"}]) == [
            Message("system", "a\n\nb")
        ]


class TestToolResults:
    def test_results_stand_in_the_order_of_their_calls(self) -> None:
        calls = calling("a", "b", "c")
        assert results_of(calls, answer("c", "C"), answer("a", "A"), answer("b", "B")) == ["A", "B", "C"]

    @given(st.permutations(range(7)))
    def test_any_permutation_of_seven_results_gives_one_order(self, order: list[int]) -> None:
        calls = calling(*(f"call_{n}" for n in range(7)))
        assert results_of(calls, *(answer(f"call_{n}", str(n)) for n in order)) == [str(n) for n in range(7)]

    def test_only_results_of_the_same_calls_are_ordered_among_each_other(self) -> None:
        first, second = calling("a", "b"), calling("c", "d")
        wire = [first, answer("b", "B"), answer("a", "A"), second, answer("d", "D"), answer("c", "C")]
        assert results_of(*wire) == ["A", "B", "C", "D"]

    def test_an_id_that_lost_its_punctuation_still_names_its_call(self) -> None:
        assert results_of(calling("call_1", "call_2"), answer("call-2", "B"), answer("call1", "A")) == ["A", "B"]

    def test_ids_that_differ_in_punctuation_alone_are_told_apart_if_sent_as_they_are(self) -> None:
        calls = calling("functions.f:11", "functions.f1:1")
        assert results_of(calls, answer("functions.f1:1", "B"), answer("functions.f:11", "A")) == ["A", "B"]

    def test_an_unknown_id_is_refused_with_the_known_ones(self) -> None:
        with pytest.raises(MessageError, match=r"tool_call_id is 'z'; .* ids 'a', 'b'") as caught:
            normalise([USER, calling("a", "b"), answer("a", "A"), answer("z", "Z")])
        assert caught.value.param == "messages[3].tool_call_id"

    @pytest.mark.parametrize("missing", [None, ""])
    def test_as_many_results_without_ids_as_calls_keep_their_order(self, missing: str | None) -> None:
        assert results_of(calling("a", "b"), answer(missing, "1"), answer(missing, "2")) == ["1", "2"]

    @pytest.mark.parametrize("given_ids", [[None], [None, None, None], ["a", None]])
    def test_results_without_ids_are_refused_if_they_cannot_be_counted_off(
        self, given_ids: list[str | None]
    ) -> None:
        with pytest.raises(MessageError, match="give each result the id of its call") as caught:
            normalise([USER, calling("a", "b"), *(answer(identifier, "x") for identifier in given_ids)])
        assert caught.value.param == "messages[2].tool_call_id"

    def test_duplicate_call_ids_go_by_position(self) -> None:
        assert results_of(calling("a", "a"), answer("a", "2nd"), answer("a", "1st")) == ["2nd", "1st"]
        calls = calling("a", "b", "a")
        assert results_of(calls, answer("a", "1"), answer("b", "2"), answer("a", "3")) == ["1", "2", "3"]

    def test_some_results_may_be_missing(self) -> None:
        assert results_of(calling("a", "b"), answer("b", "B")) == ["B"]

    @pytest.mark.parametrize("before", [[], [USER], [{"role": "assistant", "content": "no call"}]])
    def test_a_result_without_a_call_before_it_is_refused(self, before: list[dict[str, Any]]) -> None:
        with pytest.raises(MessageError, match="calls no tool") as caught:
            normalise([*before, answer("a", "A")])
        assert caught.value.param == f"messages[{len(before)}].role"

    def test_a_result_after_an_interruption_is_refused(self) -> None:
        with pytest.raises(MessageError, match=r"messages\[4\] is a tool result"):
            normalise([USER, calling("a", "b"), answer("a", "A"), USER, answer("b", "B")])


class TestArguments:
    def test_objects_are_parsed(self) -> None:
        assert parse_arguments('{"a": [1, 2.5, "x", null, true]}') == {"a": [1, 2.5, "x", None, True]}

    @pytest.mark.parametrize("empty", ["", "  ", "\n", "{}"])
    def test_empty_text_is_the_empty_object(self, empty: str) -> None:
        assert parse_arguments(empty) == {}

    @pytest.mark.parametrize(
        "text",
        ["[1]", "1", '"a"', "null", '{"a":', '{"a": NaN}', '{"a": -Infinity}', '{"a": 1, "a": 2}', "nonsense"],
    )
    def test_what_is_no_unambiguous_object_stays_text(self, text: str) -> None:
        assert parse_arguments(text) is None

    def test_a_duplicate_key_deep_inside_counts_as_well(self) -> None:
        assert parse_arguments('{"a": [{"b": 1, "b": 2}]}') is None

    @pytest.mark.parametrize("text", ['{"a": 1e999}', '{"a": -1e999}', '{"a": "\\ud800"}', '{"\\udfff": 1}'])
    def test_numbers_beyond_a_float_and_lone_surrogates_stay_text(self, text: str) -> None:
        assert parse_arguments(text) is None

    def test_an_escaped_pair_of_surrogates_is_a_character(self) -> None:
        assert parse_arguments('{"a": "\\ud83c\\udf89"}') == {"a": "🎉"}

    def test_nesting_beyond_the_interpreter_stays_text(self) -> None:
        assert parse_arguments('{"a":' + "[" * 200_000 + "]" * 200_000 + "}") is None

    def test_null_arguments_of_a_client_are_the_empty_object(self) -> None:
        message = from_wire({"role": "assistant", "tool_calls": [wire_call(None, None)]}, "m")
        assert message.calls == (call("", ""),)
        assert message.calls[0].parsed == {}


class TestTemplateForm:
    def test_arguments_are_objects_or_text_as_the_template_wants(self) -> None:
        message = assistant("c", call("a", '{"at":1}'), reasoning="r")
        shown = message.for_template()
        assert shown["tool_calls"][0]["function"]["arguments"] == {"at": 1}
        assert shown["reasoning_content"] == "r"
        as_text = message.for_template(arguments_as_text=True)
        assert as_text["tool_calls"][0]["function"]["arguments"] == '{"at":1}'

    def test_arguments_that_did_not_parse_are_shown_as_they_came(self) -> None:
        message = assistant("", call("a", "{broken"))
        assert message.for_template()["tool_calls"][0]["function"]["arguments"] == "{broken"

    def test_absent_fields_are_absent(self) -> None:
        assert Message("user", "q").for_template() == {"role": "user", "content": "q"}
        assert Message("tool", "r", call_id="i", name="n").for_template() == {
            "role": "tool",
            "content": "r",
            "tool_call_id": "i",
            "name": "n",
        }

    texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    calls = st.builds(call, texts, st.one_of(texts, st.dictionaries(texts, st.integers()).map(json.dumps)), texts)
    messages = st.builds(
        Message,
        role=st.sampled_from(["system", "user", "assistant", "tool"]),
        content=texts,
        reasoning=st.one_of(st.none(), texts.filter(bool)),
        calls=st.lists(calls, max_size=3).map(tuple),
        call_id=st.one_of(st.none(), texts.filter(bool)),
        name=st.one_of(st.none(), texts),
    )

    @given(messages)
    def test_storing_and_reading_changes_nothing(self, message: Message) -> None:
        assert Message.from_json(message.to_json()) == message


def test_a_bare_id_keeps_letters_and_digits() -> None:
    assert bare_id("call_1-a.b:c") == "call1abc"


def test_a_result_keeps_its_name_and_id() -> None:
    assert from_wire({"role": "tool", "content": "x", "tool_call_id": "i", "name": "look"}, "m") == Message(
        "tool", "x", call_id="i", name="look"
    )
    assert result("x", "i").call_id == "i"
