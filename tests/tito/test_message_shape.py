"""A template's own form of message is found by trying it out, and used for every message."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sidecar.tito.chat_template import ChatTemplate
from sidecar.tito.errors import TemplateError
from sidecar.tito.message_shape import MessageShape
from sidecar.tito.messages import Message
from tests.tito.builders import CLOCK, TOOLS, assistant, call, result, user

CALLS = "{% for c in m.tool_calls or [] %}[CALL]{% endfor %}"
PLAIN = "{% for m in messages %}{{ m.role }}:{{ m.content }}" + CALLS + "\n{% endfor %}"
JSON = "{{ c.id }} {{ c.function.arguments | tojson }}"
LOOP = [user("Why?"), assistant("", call("call_1", '{"at": "door"}')), result("a cat", "call_1")]


def template(calls: str = JSON, plain: str = PLAIN) -> ChatTemplate:
    return ChatTemplate(plain.replace("CALL", calls), {})


def text(found: ChatTemplate, messages: list[Message]) -> str:
    return found.render(messages, TOOLS, {}, CLOCK)


class TestCalls:
    def test_the_usual_template_gets_the_usual_form(self) -> None:
        found = template()
        assert found.shape == MessageShape()
        assert '[call_1 {"at": "door"}]' in text(found, LOOP)

    def test_arguments_are_text_where_an_object_is_refused(self) -> None:
        found = template("{{ 'arguments: ' + c.function.arguments }}")
        assert found.shape == MessageShape(arguments_as_text=True)
        assert '[arguments: {"at": "door"}]' in text(found, LOOP)

    def test_arguments_are_text_where_an_object_would_be_printed_in_pythons_notation(self) -> None:
        found = template("{{ c.function.arguments }}")
        assert found.shape.arguments_as_text
        assert '[{"at": "door"}]' in text(found, LOOP)

    def test_a_template_that_cannot_print_json_at_all_keeps_objects(self) -> None:
        found = template("{{ c.function.arguments.items() | list and c.function.arguments }}")
        assert not found.shape.arguments_as_text
        assert "[{'at': 'door'}]" in text(found, LOOP)

    def test_content_is_null_where_calls_are_printed_only_beside_that(self) -> None:
        found = template(plain=PLAIN.replace(CALLS, "{% if m.content is none %}" + CALLS + "{% endif %}"))
        assert found.shape.null_content
        assert "[call_1" in text(found, LOOP)
        spoken = [LOOP[0], assistant("I look.", call("call_1", "{}")), LOOP[2]]
        assert "[call_1" not in text(found, spoken)
        assert "I look." in text(found, spoken)

    def test_call_ids_have_nine_characters_where_the_template_insists(self) -> None:
        strict = "{{ raise_exception('nine!') if c.id | length != 9 }}" + JSON
        found = template(strict, PLAIN.replace("{{ m.content }}", "{{ m.tool_call_id }}{{ m.content }}"))
        assert found.shape.nine_character_ids
        printed = text(found, LOOP)
        [identifier] = {line.split("[")[1][:9] for line in printed.splitlines() if "[" in line}
        assert f"tool:{identifier}a cat" in printed
        kept = [LOOP[0], assistant("", call("abcdefgh1", "{}")), result("a cat", "abcdefgh1")]
        assert "[abcdefgh1" in text(found, kept)

    def test_different_ids_stay_different(self) -> None:
        shape = MessageShape(nine_character_ids=True)
        ids = [shaped["tool_call_id"] for shaped in shape.applied([result("r", f"call_{n}") for n in range(200)])]
        assert len(set(ids)) == 200
        assert all(len(one) == 9 and one.isalnum() for one in ids)
        assert "tool_call_id" not in shape.applied([result("r", None)])[0]

    def test_results_bear_the_name_of_their_tool_where_the_template_insists(self) -> None:
        named = PLAIN.replace(
            "{{ m.content }}",
            "{{ raise_exception('name!') if m.role == 'tool' and not m.name }}{{ m.name }} {{ m.content }}",
        )
        found = template(plain=named)
        assert found.shape == MessageShape(result_names=True)
        assert "tool:look a cat" in text(found, LOOP)
        own = [LOOP[0], LOOP[1], replace(LOOP[2], name="another")]
        assert "tool:another a cat" in text(found, own)
        assert not template(
            plain=PLAIN.replace("{{ m.content }}", "{{ m.name }}{{ m.content }}")
        ).shape.result_names

    def test_a_template_without_calls_is_not_asked_about_them(self) -> None:
        assert ChatTemplate("{{ messages[0].content }}", {}).shape == MessageShape()

    def test_a_template_that_refuses_all_calls_keeps_the_usual_form(self) -> None:
        assert template("{{ raise_exception('no calls') }}").shape == MessageShape()

    def test_a_template_that_prints_calls_but_no_results_is_taken_for_what_it_prints(self) -> None:
        half = PLAIN.replace("{{ m.content }}", "{{ m.content if m.role != 'tool' }}")
        assert template("{{ '' + c.function.arguments }}", half).shape.arguments_as_text


class TestContents:
    def test_contents_are_lists_of_parts_where_nothing_else_is_printed(self) -> None:
        parts = "{% for m in messages %}{{ m.role }}:{% for p in m.content %}{{ p.text }}{% endfor %};{% endfor %}"
        found = ChatTemplate(parts, {})
        assert found.shape == MessageShape(content_parts=True)
        assert text(found, [user("Why?"), assistant("So.")]) == "user:Why?;assistant:So.;"
        assert text(found, [user("Why?"), assistant("")]) == "user:Why?;assistant:;"

    def test_a_template_that_takes_both_gets_text(self) -> None:
        both = "{% for m in messages %}{{ m.content if m.content is string else m.content[0].text }};{% endfor %}"
        assert ChatTemplate(both, {}).shape == MessageShape()


class TestReasoning:
    @pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
    def test_reasoning_goes_under_the_name_that_is_read(self, key: str) -> None:
        found = template(
            plain="{% for m in messages %}({{ m.KEY }}){{ m.content }};{% endfor %}".replace("KEY", key)
        )
        assert found.shape.reasoning_key == key
        assert text(found, [user("Why?"), assistant("So.", reasoning="Hm.")]) == "()Why?;(Hm.)So.;"

    def test_the_standard_name_wins(self) -> None:
        source = "{% for m in messages %}({{ m.reasoning_content or m.thinking }}){{ m.content }};{% endfor %}"
        assert ChatTemplate(source, {}).shape.reasoning_key == "reasoning_content"

    def test_reasoning_that_is_printed_in_tool_loops_only_counts(self) -> None:
        found = template(JSON + "{{ m.thinking }}")
        assert found.shape.reasoning_key == "thinking"

    def test_a_template_that_takes_no_reasoning_at_all_gets_none(self) -> None:
        strict = "{{ raise_exception('no') if messages[1].reasoning_content }}" + PLAIN
        found = template(plain=strict)
        assert "assistant:So." in text(found, [user("Why?"), assistant("So.", reasoning="Hm.")])

    def test_reasoning_beside_text_and_calls_is_left_out_where_the_template_refuses_that(self) -> None:
        """gpt-oss."""
        strict = "{% for m in messages %}{{ raise_exception('both') if m.content and m.thinking and m.tool_calls }}({{ m.thinking }}){{ m.content }}{{ m.tool_calls | length if m.tool_calls }};{% endfor %}"  # fmt: skip  # noqa: E501
        found = ChatTemplate(strict, {})
        both = [*LOOP[:1], assistant("I look.", call("call_1", "{}"), reasoning="Hm."), LOOP[2]]
        later = [*both, assistant("So.", reasoning="Now.")]
        assert text(found, later) == "()Why?;()I look.1;()a cat;(Now.)So.;"

    def test_the_templates_first_words_are_passed_on_if_it_refuses_every_form(self) -> None:
        found = template(plain="{{ raise_exception('first ' ~ messages | length) }}" + PLAIN)
        with pytest.raises(TemplateError, match="first 3"):
            text(found, [LOOP[0], assistant("a", call("c"), reasoning="Hm."), LOOP[2]])


def test_the_clock_and_tools_of_the_probes_are_not_the_sessions() -> None:
    source = "{{ strftime_now('%Y') }}{% if tools %}{{ tools | length }}{% endif %}" + PLAIN.replace("CALL", JSON)
    found: Any = ChatTemplate(source, {})
    assert found.render([user("q")], None, {}, CLOCK).startswith("2026user:q")
