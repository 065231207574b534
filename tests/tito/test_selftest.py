"""The start-up self-test passes the real models and catches templates and tokenizers that are not exact."""

from __future__ import annotations

import pytest

from sidecar.tito.chat_template import ChatTemplate
from sidecar.tito.delta import PromptBuilder
from sidecar.tito.model import Model
from sidecar.tito.selftest import Event, Verdict, check_template, events
from tests.tito.builders import builder_for, byte_tokenizer

CONTROL = ("<system>", "<user>", "<assistant>", "<tool>", "<end>")
PLAIN = (
    "{% if tools %}<system>{{ tools | tojson }}<end>{% endif %}"
    "{% for m in messages %}BEFORE<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function | tojson }}]{% endfor %}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
ROUND = (
    "{% if m.role == 'user' %}[Round "
    "{{ messages[:loop.index] | selectattr('role', 'equalto', 'user') | list | length }}]{% endif %}"
)
COUNTED_RESULTS = "{% if m.role == 'tool' %}{% set ns.results = ns.results + 1 %}{{ ns.results }}:{% endif %}"
EARLIER_USERS = "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(',') }}"


def verdict_of(template: str) -> Verdict:
    return check_template(builder_for(template, byte_tokenizer(*CONTROL), "<end>"))


def outcomes(verdict: Verdict) -> set[str]:
    return {result.outcome for result in verdict.results}


class TestRealModels:
    def test_qwen3_is_exact_with_tools(self, qwen3: Model) -> None:
        verdict = check_template(qwen3.builder)
        assert (outcomes(verdict), verdict.tools, verdict.prints_tools) == ({"exact"}, True, True)
        assert qwen3.verdict.outcome == "exact"

    def test_smollm2_is_exact_and_prints_no_tools(self, smollm2: Model) -> None:
        verdict = check_template(smollm2.builder)
        assert (outcomes(verdict), verdict.tools, verdict.prints_tools) == ({"exact"}, False, False)


class TestEvents:
    def test_every_kind_of_append_is_tried(self) -> None:
        kinds = {tuple(message.role for message in event.appended) for event in events()}
        assert kinds == {("user",), ("tool",), ("tool", "tool"), ("tool", "user")}

    def test_histories_end_in_a_reply_and_tools_are_given_where_they_matter(self) -> None:
        for event in events():
            assert event.history[-1].role == "assistant"
            assert (event.conversation.tools is not None) == event.needs_tools


class TestTemplates:
    def test_a_plain_template_is_exact(self) -> None:
        verdict = verdict_of(PLAIN.replace("BEFORE", ""))
        assert (outcomes(verdict), verdict.tools, verdict.prints_tools) == ({"exact"}, True, True)

    def test_a_template_that_counts_rounds_is_stateful(self) -> None:
        verdict = verdict_of(PLAIN.replace("BEFORE", ROUND))
        [user] = [result for result in verdict.results if result.event.name == "user"]
        assert (verdict.outcome, user.outcome, verdict.failures) == ("stateful", "stateful", {})
        assert "[Round 2]" in user.reason
        assert "[Round 3]" in user.reason

    def test_a_template_that_numbers_tool_results_is_caught_in_the_second_turn(self) -> None:
        counted = "{% set ns = namespace(results=0) %}" + PLAIN.replace("BEFORE", COUNTED_RESULTS)
        stateful = {r.event.name for r in verdict_of(counted).results if r.outcome == "stateful"}
        assert "tool" not in stateful
        assert stateful >= {"parallel_tools", "tool_in_second_turn"}

    def test_a_template_that_prints_no_assistant_text_is_not_exact(self) -> None:
        silent = PLAIN.replace("BEFORE", "").replace(
            "{{ m.content }}", "{% if m.role != 'assistant' %}{{ m.content }}{% endif %}"
        )
        assert "prints nothing of the assistant" in verdict_of(silent).failures["user"]

    def test_a_template_that_closes_no_reply_is_exact_and_says_so(self) -> None:
        verdict = verdict_of(PLAIN.replace("BEFORE", "").replace("<end>", ""))
        assert verdict.outcome == "exact"
        assert all(result.delta is not None and result.delta.close_id is None for result in verdict.results)

    def test_a_template_that_insists_on_a_system_message_is_exact_with_one(self) -> None:
        strict = "{{ raise_exception('no system') if messages[0].role != 'system' }}" + PLAIN.replace("BEFORE", "")
        verdict = verdict_of(strict)
        assert verdict.outcome == "exact"
        assert {r.event.name for r in verdict.results if r.outcome == "unsupported"} == {"user_without_system"}
        assert verdict.tools
        assert verdict.prints_tools

    def test_a_template_without_stop_tokens_unless_there_is_a_system_message_is_not_exact(self) -> None:
        partial = PLAIN.replace("BEFORE", "").replace("<end>{% endfor %}", "STOP{% endfor %}")
        partial = partial.replace("STOP", "{% if messages[0].role == 'system' %}<end>{% endif %}")
        assert set(verdict_of(partial).failures) == {"user_without_system"}

    def test_a_template_that_refuses_the_short_history_alone_is_stateful(self) -> None:
        picky = "{{ raise_exception('too short') if messages | length < 5 }}" + PLAIN.replace("BEFORE", "")
        [user] = [result for result in verdict_of(picky).results if result.event.name == "user"]
        assert user.outcome == "stateful"
        assert "too short" in user.reason

    def test_a_template_that_prints_more_beside_a_sentinel_is_refused_where_it_does(self) -> None:
        shouting = "{% if '⟦' in messages | string %}!{% endif %}<end>{% endfor %}"
        verdict = verdict_of(PLAIN.replace("BEFORE", "").replace("<end>{% endfor %}", shouting))
        [user] = [result for result in verdict.results if result.event.name == "user"]
        assert user.outcome == "refused"
        assert user.reason.startswith("the delta is '<user>Thanks.!<end><assistant>', but the template prints")
        assert user.difference is not None
        assert str(user.difference.found)[user.difference.position :] == "!<end><assistant>"
        assert str(user.difference.expected)[user.difference.position :] == "<end><assistant>"

    def test_a_template_that_takes_a_sentinel_but_not_the_reply_is_refused_with_its_words(self) -> None:
        strict = "{% if m.content.startswith('A mark') %}{{ raise_exception('no marks') }}{% endif %}"
        verdict = verdict_of(PLAIN.replace("BEFORE", strict))
        [user] = [result for result in verdict.results if result.event.name == "user"]
        assert (user.outcome, user.difference) == ("refused", None)
        assert "no marks" in user.reason

    def test_tools_that_are_not_printed_are_no_tools(self) -> None:
        toolless = PLAIN.replace("BEFORE", "").replace("{% if tools %}", "{% if false %}")
        verdict = verdict_of(toolless)
        assert verdict.tools
        assert not verdict.prints_tools

    def test_a_template_that_refuses_everything_is_taken_to_print_tools(self) -> None:
        verdict = verdict_of("{{ raise_exception('never') }}")
        assert not verdict.tools
        assert verdict.prints_tools
        assert "never" in verdict.failures["user"]

    def test_a_template_that_prints_neither_tools_nor_calls_has_no_tool_support(self) -> None:
        bare = PLAIN.replace("BEFORE", "").replace("{% if tools %}", "{% if false %}")
        assert not verdict_of(bare.replace("[{{ c.function | tojson }}]", "")).tools


class TestSeam:
    MERGING = "{% for m in messages %}{{ m.role }}:{{ m.content }}|{{ '\n' }}{% endfor %}"

    def test_a_tokenizer_that_merges_across_the_stop_token_is_caught(self) -> None:
        tokenizer = byte_tokenizer(vocab=["|Ċ"], merges=[("|", "Ċ")])
        verdict = check_template(builder_for(self.MERGING, tokenizer, "|"))
        assert "the tokenizer merges across '|'" in verdict.failures["user"]
        assert "position 10" in verdict.failures["user"]

    def test_the_same_template_is_exact_where_the_stop_token_is_a_boundary(self) -> None:
        tokenizer = byte_tokenizer("|", vocab=["|Ċ"], merges=[("|", "Ċ")])
        assert check_template(builder_for(self.MERGING, tokenizer, "|")).outcome == "exact"

    def test_merges_within_the_delta_are_no_fault(self) -> None:
        tokenizer = byte_tokenizer(vocab=["us", "Ċu"], merges=[("u", "s"), ("Ċ", "u")])
        assert check_template(builder_for(self.MERGING, tokenizer, "|")).outcome == "exact"


@pytest.mark.parametrize("event", events(), ids=lambda event: event.name)
def test_qwen3_fails_each_event_once_its_template_depends_on_earlier_turns(qwen3: Model, event: Event) -> None:
    source = qwen3.builder.template.source + EARLIER_USERS
    builder = PromptBuilder(ChatTemplate(source, {}), qwen3.codec, qwen3.stop_ids)
    assert event.name in {r.event.name for r in check_template(builder).results if r.outcome != "exact"}
