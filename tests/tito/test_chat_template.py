"""Rendering prints what transformers prints, and a template's clock is the session's."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

import pytest

from sidecar.tito.chat_template import ChatTemplate
from sidecar.tito.errors import TemplateError
from sidecar.tito.messages import Message
from sidecar.tito.model import Model
from tests.tito.builders import CLOCK, TOOLS, assistant, call, result, user

SYSTEM = Message("system", "Be brief. <|im_end|> is no secret.")
PLAIN = [user("Hi"), assistant("Hello."), user("Größe: 10 µm 🎉")]
LOOP = [
    SYSTEM,
    user("What is behind the door?"),
    assistant("", call("call_1", '{"at": "door", "deep": {"ä": [1, 2.5, null, true]}}'), reasoning="I look."),
    result("a cat\n"),
    assistant("Two more.", call("call_2"), call("call_3", '{"at": "<b>&\'"}'), reasoning="Hm."),
    result("1", "call_2"),
    result("2", "call_3"),
]
ANSWERED = [*LOOP, assistant("A cat.", reasoning="Done."), user("Thanks.")]
TEXT_ARGUMENTS = [user("q"), assistant("", call("c", "{broken")), result("r", "c")]


def reference_text(reference: Any, messages: list[Message], **options: Any) -> str:
    """What transformers prints for the messages as an OpenAI client sends them."""
    text = reference.apply_chat_template([m.for_template() for m in messages], tokenize=False, **options)
    assert isinstance(text, str)
    return text


class TestAgainstTransformers:
    @pytest.mark.parametrize("prompt", [True, False])
    @pytest.mark.parametrize("tools", [None, TOOLS])
    @pytest.mark.parametrize("messages", [PLAIN, [SYSTEM, *PLAIN], LOOP, ANSWERED, TEXT_ARGUMENTS])
    def test_qwen3_prints_the_same(
        self, qwen3: Model, qwen3_reference: Any, messages: list[Message], tools: Any, prompt: bool
    ) -> None:
        ours = qwen3.builder.template.render(messages, tools, {}, CLOCK, add_generation_prompt=prompt)
        assert ours == reference_text(qwen3_reference, messages, tools=tools, add_generation_prompt=prompt)

    @pytest.mark.parametrize("thinking", [True, False])
    def test_qwen3_prints_the_same_with_template_arguments(
        self, qwen3: Model, qwen3_reference: Any, thinking: bool
    ) -> None:
        ours = qwen3.builder.template.render(PLAIN, None, {"enable_thinking": thinking}, CLOCK)
        assert ours == reference_text(qwen3_reference, PLAIN, add_generation_prompt=True, enable_thinking=thinking)
        assert ours.endswith("</think>\n\n") is not thinking

    @pytest.mark.parametrize("prompt", [True, False])
    @pytest.mark.parametrize("messages", [PLAIN, [SYSTEM, *PLAIN], [user("one")], ANSWERED])
    def test_smollm2_prints_the_same(
        self, smollm2: Model, smollm2_reference: Any, messages: list[Message], prompt: bool
    ) -> None:
        ours = smollm2.builder.template.render(messages, None, {}, CLOCK, add_generation_prompt=prompt)
        assert ours == reference_text(smollm2_reference, messages, add_generation_prompt=prompt)

    def test_the_ids_of_a_full_prompt_are_transformers_own(
        self, qwen3: Model, qwen3_reference: Any, smollm2: Model, smollm2_reference: Any
    ) -> None:
        for model, reference in ((qwen3, qwen3_reference), (smollm2, smollm2_reference)):
            messages = [m.for_template() for m in PLAIN]
            expected = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
            text = model.builder.template.render(PLAIN, None, {}, CLOCK)
            assert model.codec.encode(text).tolist() == expected["input_ids"]


class TestClock:
    TEMPLATE = "{{ strftime_now('%d %B %Y') }}{% for m in messages %}[{{ m.content }}]{% endfor %}"

    def test_the_date_is_the_sessions_not_todays(self) -> None:
        template = ChatTemplate(self.TEMPLATE, {})
        assert template.render([user("q")], None, {}, datetime(2001, 2, 3)) == "03 February 2001[q]"
        assert template.render([user("q")], None, {}, CLOCK) == "06 May 2026[q]"

    def test_a_client_cannot_set_the_clock_or_the_messages(self) -> None:
        kwargs = {"strftime_now": str, "messages": [], "tools": [1], "add_generation_prompt": False}
        template = ChatTemplate(self.TEMPLATE + "{{ tools }}{{ add_generation_prompt }}", {})
        assert template.render([user("q")], None, kwargs, CLOCK) == "06 May 2026[q]NoneTrue"


class TestVariables:
    def test_special_tokens_and_template_arguments_reach_the_template(self) -> None:
        template = ChatTemplate("{{ bos_token }}{{ reasoning_effort }}", {"bos_token": "<s>"})
        assert template.render([user("q")], None, {"reasoning_effort": "high"}, CLOCK) == "<s>high"

    def test_an_empty_tool_list_is_no_tools(self) -> None:
        assert ChatTemplate("{{ tools is none }}", {}).render([user("q")], [], {}, CLOCK) == "True"

    def test_the_hash_is_of_the_templates_text(self) -> None:
        assert ChatTemplate("é", {}).sha256 == hashlib.sha256("é".encode()).hexdigest()


class TestRefusals:
    STRICT = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{% if c.function.arguments is not string %}{{ raise_exception('text only') }}{% endif %}"
        "{{ c.function.arguments }}{% endfor %}{% endfor %}"
    )

    def test_arguments_go_in_as_text_where_the_template_refuses_objects(self) -> None:
        rendered = ChatTemplate(self.STRICT, {}).render([assistant("", call("c", '{"a": 1}'))], None, {}, CLOCK)
        assert rendered == '{"a": 1}'

    def test_the_templates_own_words_are_passed_on(self) -> None:
        template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
        with pytest.raises(TemplateError, match="refuses these messages: roles must alternate"):
            template.render([user("q")], None, {}, CLOCK)

    def test_the_first_refusal_is_told_when_both_forms_of_arguments_fail(self) -> None:
        template = ChatTemplate("{{ raise_exception('%s' % messages[0].tool_calls[0].function.arguments) }}", {})
        with pytest.raises(TemplateError, match=r"\{'a': 1\}"):
            template.render([assistant("", call("c", '{"a": 1}'))], None, {}, CLOCK)

    def test_a_template_that_breaks_on_its_own_is_refused_as_well(self) -> None:
        with pytest.raises(TemplateError, match="refuses these messages"):
            ChatTemplate("{{ messages[0].missing.deeper }}", {}).render([user("q")], None, {}, CLOCK)

    def test_text_that_is_no_template_cannot_be_compiled(self) -> None:
        with pytest.raises(TemplateError, match="cannot be compiled"):
            ChatTemplate("{% for %}", {})
