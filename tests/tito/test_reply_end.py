"""How replies end: the first closing token before the next message's content, a rewritten one, or none."""

from __future__ import annotations

import pytest

from sidecar.tito.delta import Conversation, PromptBuilder
from sidecar.tito.errors import DeltaError
from sidecar.tito.model import Model, ModelText, build_model
from sidecar.tito.reply_end import ReplyEnd, behind_end, find_end, find_end_of_calls, first_of, is_in_place
from sidecar.tito.selftest import check_template
from tests.tito.builders import CLOCK, TOOLS, assistant, builder_for, byte_tokenizer, call, result, user
from tests.tito.talk import Talk

STOPS = frozenset({"<end>", "<user>"})
KNOWN = ("<end>", "<user>", "<stop>", "<bot>")


def control_at(text: str, position: int) -> str | None:
    return next((token for token in KNOWN if text.startswith(token, position)), None)


def end_of(alone: str, followed: str) -> ReplyEnd:
    return find_end(alone, followed, "Thanks.", STOPS, control_at)


class TestText:
    @pytest.mark.parametrize(
        ("alone", "followed"),
        [
            ("<end>\n", "<end>\n<bot>Thanks.<end>"),
            ("", "<user>Thanks.<end>"),
            ("", "\n<end>\nThanks."),  # a template may close only what is followed
        ],
    )
    def test_a_stop_token_before_the_next_content_closes(self, alone: str, followed: str) -> None:
        assert end_of(alone, followed) == ReplyEnd(STOPS)

    def test_the_token_in_the_place_of_the_stop_token_closes_too(self) -> None:
        assert end_of("<end>", "<stop><bot>Thanks.<stop>") == ReplyEnd(STOPS | {"<stop>"})

    @pytest.mark.parametrize(
        ("alone", "followed"),
        [("", " Bot: Thanks.<end>"), ("<end>", "<bot>"), ("<end>", "\nThanks.<bot>"), ("\n", "\nYou: Thanks.")],
    )
    def test_without_one_each_reply_has_to_be_looked_at(self, alone: str, followed: str) -> None:
        assert end_of(alone, followed) == ReplyEnd(STOPS, closed=False)

    def test_a_control_token_at_which_nobody_stops_is_a_fault_that_names_the_remedy(self) -> None:
        end = end_of("<stop>\n", "<stop>\n<bot>Thanks.<stop>")
        assert "'<stop>', which is none of the stop tokens '<end>', '<user>'" in end.fault
        assert "eos_token_id in generation_config.json" in end.fault
        with pytest.raises(DeltaError, match="'<stop>'"):
            behind_end(end, "<stop>\n", lambda: "", with_calls=False)


class TestBehind:
    CLOSED, OPEN = ReplyEnd(STOPS), ReplyEnd(STOPS, closed=False)

    def test_the_first_closing_token_is_taken_off(self) -> None:
        assert behind_end(self.CLOSED, "}<end>\n<user>a<end>", pytest.fail, with_calls=True) == (
            "<end>",
            "\n<user>a<end>",
        )

    def test_a_missing_one_is_an_error(self) -> None:
        with pytest.raises(DeltaError, match="prints none of the stop tokens '<end>', '<user>' after a reply"):
            behind_end(self.CLOSED, "Thanks.", pytest.fail, with_calls=False)

    def test_a_text_that_nothing_closes_leaves_everything_to_the_next_message(self) -> None:
        assert behind_end(self.OPEN, "\nYou: a<end>", lambda: "\n", with_calls=False) == (None, "\nYou: a<end>")

    def test_a_reply_may_be_closed_where_others_are_not(self) -> None:
        assert behind_end(self.OPEN, "<end>You: a", lambda: "<end>", with_calls=False) == ("<end>", "You: a")
        assert behind_end(self.OPEN, "}<end>You: a", lambda: "}<end>", with_calls=True) == ("<end>", "You: a")

    def test_a_calls_own_marks_are_not_printed_twice(self) -> None:
        assert behind_end(self.OPEN, "}</c>You: a", lambda: "}</c>", with_calls=True) == (None, "You: a")

    def test_a_call_that_only_the_last_message_closes_ends_before_that(self) -> None:
        assert behind_end(self.OPEN, "}</c>\nYou: a", lambda: "}</c><end>", with_calls=True) == (None, "\nYou: a")

    def test_a_call_whose_end_changes_is_an_error(self) -> None:
        with pytest.raises(DeltaError, match="ends the call in another way once its result is there"):
            behind_end(self.OPEN, ", 1}You: a<end>", lambda: "}</c>", with_calls=True)


def test_calls_are_closed_by_a_token_before_the_result_only() -> None:
    assert find_end_of_calls("}<end>a cat", "a cat", STOPS) == ReplyEnd(STOPS)
    assert find_end_of_calls("}a cat<end>", "a cat", STOPS) == ReplyEnd(STOPS, closed=False)
    assert find_end_of_calls("}<end>", "a cat", STOPS) == ReplyEnd(STOPS, closed=False)


def test_the_longest_of_the_first_is_found() -> None:
    assert first_of(frozenset({"<a", "<a>"}), "x<a>") == (1, "<a>")
    assert first_of(frozenset({"<a"}), "x") == (1, None)


def test_a_reply_is_in_place_where_the_prompt_ended() -> None:
    assert is_in_place("You: a\nBot:", "You: a\nBot: ")
    assert is_in_place("You: a\nBot:<think>\n", "You: a\nBot:")
    assert not is_in_place("Judge this: You: a\nIs it safe?", "Judge this: You: a\nBot: ")


SPOKEN = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.arguments | tojson }}]{% endfor %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""No token closes anything."""


def spoken(template: str = SPOKEN) -> Model:
    text = ModelText("tiny", byte_tokenizer("<eos>"), template, {"eos_token": "<eos>"}, frozenset())
    return build_model(text, family_name="generic", allow_unstable=True)


class TestNothingCloses:
    def test_such_a_template_is_exact(self) -> None:
        verdict = spoken().verdict
        assert (verdict.outcome, verdict.tools) == ("exact", True)

    def test_the_sampled_stop_token_stays_in_its_segment_and_the_text_goes_on(self) -> None:
        talk = Talk(spoken())
        talk.ask({"role": "user", "content": "Why?"})
        node = talk.answer("So.<eos>")
        talk.ask({"role": "user", "content": "Sure?"})
        assert talk.placement.parent is node
        assert talk.prompt.segment_reason == "stop_trimmed"
        assert talk.sent() == "user: Why?\nassistant: So.\nuser: Sure?\nassistant: "
        assert talk.sent_ids()[: node.token_count - 1] == node.token_ids().tolist()[:-1]

    def test_a_cut_reply_goes_on_in_its_segment(self) -> None:
        talk = Talk(spoken())
        talk.ask({"role": "user", "content": "Why?"})
        talk.answer("Because of")
        talk.ask({"role": "user", "content": "Sure?"})
        assert talk.prompt.segment_reason is None
        assert talk.sent() == "user: Why?\nassistant: Because of\nuser: Sure?\nassistant: "

    def test_behind_a_call_its_own_bracket_is_not_printed_twice(self) -> None:
        builder = spoken().builder
        delta = builder.delta(
            [user("Why?")], assistant("", call("c")), [result("a cat", "c")], Conversation(TOOLS, {}, CLOCK)
        )
        assert (delta.close_id, delta.text) == (None, "tool: a cat\nassistant: ")

    def test_a_template_that_prints_the_conversation_inside_a_message_is_refused(self) -> None:
        judging = "Judge: {% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}Is it safe?<eos>"
        verdict = spoken(judging).verdict
        assert verdict.outcome == "refused"
        assert "somewhere else than where its generation prompt asks for one" in verdict.failures["user"]


class TestClosers:
    TEMPLATE = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )

    def test_a_family_may_name_what_its_template_closes_replies_with(self) -> None:
        tokenizer = byte_tokenizer("<user>", "<assistant>", "<end>", "<return>")
        refused = builder_for(self.TEMPLATE, tokenizer, "<return>")
        assert check_template(refused).outcome == "refused"
        builder = PromptBuilder(
            refused.template,
            refused.codec,
            frozenset({tokenizer.token_to_id("<return>")}),
            closers=frozenset({"<end>"}),
        )
        assert check_template(builder).outcome == "exact"
        delta = builder.delta([user("a")], assistant("b"), [user("c")], Conversation(None, {}, CLOCK))
        assert delta.close_id == tokenizer.token_to_id("<end>")

    def test_a_delta_that_would_lose_the_next_messages_beginning_is_caught(self) -> None:
        """Replies are closed in short conversations only: in longer ones the first `<end>` is another message's."""
        moody = self.TEMPLATE.replace(
            "<end>{% endfor %}",
            "{% if m.role != 'assistant' or messages | length < 5 %}<end>{% endif %}{% endfor %}",
        )
        builder = builder_for(moody, byte_tokenizer("<system>", "<user>", "<assistant>", "<end>"), "<end>")
        verdict = check_template(builder)
        assert verdict.outcome == "refused"
        assert "lacks its beginning" in verdict.failures["user"]


def test_a_template_that_takes_no_probe_is_taken_to_close_with_its_stop_tokens() -> None:
    picky = "{{ raise_exception('a!') if messages[0].content != 'a' }}" + TestClosers.TEMPLATE
    builder = builder_for(picky, byte_tokenizer("<user>", "<assistant>", "<end>"), "<end>")
    delta = builder.delta([user("a")], assistant("b"), [user("c")], Conversation(None, {}, CLOCK))
    assert delta.text == "<user>c<end><assistant>"
