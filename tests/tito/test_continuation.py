"""A reply that goes on with the last message: what stands before it is context, and its text is one message."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sidecar.tito.continuation import inside, open_ended, with_prefix, without_prefix
from sidecar.tito.errors import TemplateError
from sidecar.tito.fingerprint import MatchRules
from sidecar.tito.history import history_of
from sidecar.tito.messages import Message
from sidecar.tito.model import Model, ModelText, build_model
from sidecar.tito.modes import BuildModes
from sidecar.tito.records import BreakReason
from tests.tito.builders import TOOLS, byte_tokenizer
from tests.tito.talk import Talk

IM_END = 151645
ASK = {"role": "user", "content": "What is behind the door?"}
MORE = {"role": "user", "content": "Sure?"}


def begun(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


@pytest.fixture
def talk(qwen3: Model) -> Talk:
    return Talk(qwen3)


def stored(talk: Talk) -> list[Message]:
    """The history after the last step, as it is stored."""
    messages = history_of(list(talk.trajectory)[-1])
    return [Message.from_json(one.data if one.data is not None else talk.blobs[one.key]) for one in messages]


class TestForeignText:
    def test_at_a_root_the_prompt_ends_with_the_clients_text(self, talk: Talk) -> None:
        talk.ask(ASK, begun("Behind it is"), continues=True)
        assert talk.sent() == (
            "<|im_start|>user\nWhat is behind the door?<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\nBehind it is"
        )
        assert talk.prompt.segment_reason == "root"

    def test_the_step_ends_with_one_message_that_matches_when_it_is_sent_back(self, talk: Talk) -> None:
        talk.ask(ASK, begun("Behind it is"), continues=True)
        node = talk.answer(" a cat.<|im_end|>")
        assert talk.reply.content == " a cat."
        assert stored(talk) == [Message("user", ASK["content"]), Message("assistant", "Behind it is a cat.")]
        assert talk.wire == [ASK, begun("Behind it is a cat.")]
        assert (node.record.message_count, len(node.record.message_hashes)) == (2, 1)
        talk.ask(MORE)
        assert talk.placement.parent is node
        assert talk.forgiven == ()
        assert talk.prompt.segment_reason is None
        assert "Behind it is a cat.<|im_end|>\n<|im_start|>user\nSure?" in talk.sent()

    def test_behind_a_reply_only_what_is_new_is_rendered(self, talk: Talk) -> None:
        talk.ask(ASK)
        node = talk.answer("A cat.<|im_end|>")
        talk.ask(MORE, begun("Yes, since"), continues=True)
        assert talk.placement.parent is node
        assert talk.prompt.segment_reason is None
        delta = talk.model.codec.decode(talk.prompt.context_ids.tolist())
        assert delta == (
            "\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nYes, since"
        )
        talk.answer(" I saw it.<|im_end|>")
        talk.ask({"role": "user", "content": "Oh."})
        assert talk.placement.parent is list(talk.trajectory)[-1]

    def test_trailing_space_is_the_clients_own(self, talk: Talk) -> None:
        talk.ask(ASK, begun("Behind it is "), continues=True)
        assert talk.sent().endswith("Behind it is ")
        talk.answer("a cat.<|im_end|>")
        assert talk.wire[-1]["content"] == "Behind it is a cat."

    def test_it_may_have_opened_the_reasoning(self, talk: Talk) -> None:
        talk.ask(ASK, begun("<think>\nLet me"), continues=True)
        talk.answer(" look.\n</think>\n\nA cat.<|im_end|>")
        assert (talk.reply.reasoning.strip(), talk.reply.content) == ("look.", "A cat.")

    def test_reasoning_that_it_has_closed_is_not_open(self, talk: Talk) -> None:
        talk.ask(ASK, begun("<think>\nLet me look.\n</think>\n\nA"), continues=True)
        talk.answer(" cat.<|im_end|>")
        assert (talk.reply.reasoning, talk.reply.content) == ("", " cat.")

    def test_it_takes_the_place_of_the_reply_that_was_there(self, talk: Talk) -> None:
        talk.ask(ASK)
        talk.answer("A dog.<|im_end|>")
        talk.wire = [ASK]
        talk.ask(begun("A c"), continues=True)
        assert talk.placement.parent is None
        assert talk.placement.replaced == ("step0",)

    def test_a_boundary_renders_the_text_too(self, talk: Talk) -> None:
        talk.ask(ASK)
        talk.answer("A cat.<|im_end|>")
        talk.ask(MORE, begun("Yes"), continues=True, tools=TOOLS)
        assert talk.prompt.segment_reason == "tools_changed"
        assert talk.sent().endswith("<think>\n\n</think>\n\nYes")

    def test_under_the_templates_own_thinking_the_prompt_ends_there_too(self, qwen3: Model) -> None:
        talk = Talk(qwen3, modes=BuildModes(history_thinking="template"))
        talk.ask(ASK)
        talk.answer("<think>\nI look.\n</think>\n\nA cat.<|im_end|>")
        talk.ask(MORE, begun("Yes"), continues=True)
        assert talk.prompt.segment_reason == "thinking_template"
        assert talk.sent().endswith("<think>\n\n</think>\n\nYes")

    def test_a_template_that_does_not_print_the_text_refuses_it(self) -> None:
        template = (
            "{% for m in messages %}{% if not loop.last or m.role == 'user' %}<|im_start|>{{ m.role }}:"
            "{{ m.content }}<|im_end|>{% endif %}{% endfor %}<|im_start|>"
        )
        tokenizer = byte_tokenizer("<|im_start|>", "<|im_end|>")
        text = ModelText("tiny", tokenizer, template, {"eos_token": "<|im_end|>"}, frozenset())
        talk = Talk(build_model(text, family_name="smollm2"))
        with pytest.raises(TemplateError, match="leave continue_final_message out"):
            talk.ask(ASK, begun("A"), continues=True)


class TestOwnReply:
    def test_a_reply_that_was_cut_goes_on_from_its_ids(self, talk: Talk) -> None:
        talk.ask(ASK)
        node = talk.answer("A ca")
        before = node.token_ids().tolist()
        talk.ask(continues=True)
        assert talk.placement.parent is node
        assert talk.prompt.segment_reason is None
        assert talk.sent_ids() == before
        second = talk.answer("t.<|im_end|>")
        assert stored(talk) == [Message("user", ASK["content"]), Message("assistant", "A cat.")]
        talk.ask(MORE)
        assert talk.placement.parent is second
        assert talk.sent_ids()[: second.token_count] == second.token_ids().tolist()
        assert "A cat.<|im_end|>\n<|im_start|>user\nSure?" in talk.sent()

    def test_it_may_be_cut_and_go_on_several_times(self, talk: Talk) -> None:
        talk.ask(ASK)
        talk.answer("A")
        for piece in (" c", "a", "t.<|im_end|>"):
            talk.ask(continues=True)
            talk.answer(piece)
        assert stored(talk)[-1].content == "A cat."
        assert len(talk.trajectory.roots) == 1
        talk.ask(MORE)
        assert "A cat.<|im_end|>\n<|im_start|>user\nSure?" in talk.sent()

    def test_cut_reasoning_goes_on_as_reasoning(self, talk: Talk) -> None:
        talk.ask(ASK)
        talk.answer("<think>\nLet me")
        assert (talk.reply.reasoning, talk.reply.content) == ("Let me", "")
        talk.ask(continues=True)
        talk.answer(" look")
        assert (talk.reply.reasoning, talk.reply.content) == (" look", "")
        talk.ask(continues=True)
        talk.answer(".\n</think>\n\nA cat.<|im_end|>")
        assert talk.reply.content == "A cat."
        assert stored(talk)[-1] == Message("assistant", "A cat.", "Let me look.")

    def test_a_client_that_drops_the_reasoning_does_not_end_it(self, talk: Talk) -> None:
        talk.ask(ASK)
        talk.answer("<think>\nI look.\n</think>\n\nA ca")
        del talk.wire[-1]["reasoning_content"]
        talk.ask(continues=True)
        talk.answer("t.<|im_end|>")
        assert talk.reply.content == "t."
        assert stored(talk)[-1] == Message("assistant", "A cat.", "I look.")

    def test_a_stop_token_is_left_out_and_stays_in_its_segment(self, talk: Talk) -> None:
        talk.ask(ASK)
        node = talk.answer("A cat<|im_end|>")
        before = node.token_ids().tolist()
        talk.ask(continues=True)
        assert talk.prompt.segment_reason == "stop_trimmed"
        assert talk.prompt.break_reason == BreakReason("stop_trimmed", 1)
        assert talk.sent_ids() == before[:-1]
        talk.answer(" and a dog.<|im_end|>")
        assert stored(talk)[-1].content == "A cat and a dog."

    def test_lost_space_at_the_seam_is_the_clients_own(self, talk: Talk) -> None:
        talk.ask(ASK)
        talk.answer("A cat.\n\n")
        assert talk.reply.content == "A cat.\n\n"
        talk.wire[-1] = begun("A cat.")
        talk.ask(continues=True)
        talk.answer(" Sure.<|im_end|>")
        assert talk.wire[-1]["content"] == "A cat. Sure."
        talk.ask(MORE)
        assert talk.placement.parent is list(talk.trajectory)[-1]

    def test_exact_matching_goes_on_from_the_ids_of_an_exact_telling_alone(self, qwen3: Model) -> None:
        talk = Talk(qwen3, rules=MatchRules(exact=True))
        talk.ask(ASK)
        talk.answer("<think>\nI look.\n</think>\n\nA ca")
        talk.ask(continues=True)
        assert talk.placement.resumes
        del talk.wire[-1]["reasoning_content"]
        talk.ask(continues=True)
        assert talk.placement.parent is None

    def test_changed_tools_render_its_text(self, talk: Talk) -> None:
        talk.ask(ASK)
        talk.answer("A ca")
        talk.ask(continues=True, tools=TOOLS)
        assert talk.prompt.segment_reason == "tools_changed"
        assert talk.sent().endswith("</think>\n\nA ca")
        talk.answer("t.<|im_end|>")
        assert stored(talk)[-1].content == "A cat."

    def test_two_assistant_messages_in_a_row_are_two(self, talk: Talk) -> None:
        talk.ask(ASK)
        talk.answer("A cat.<|im_end|>")
        talk.ask(begun("And"), continues=True)
        assert talk.sent().endswith("A cat.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nAnd")
        talk.answer(" a dog.<|im_end|>")
        assert [message.content for message in stored(talk)] == [ASK["content"], "A cat.", "And a dog."]

    def test_a_template_without_an_exact_delta_is_not_needed_for_it(self, talk: Talk) -> None:
        verdict = talk.model.verdict
        refused = tuple(replace(result, outcome="refused", reason="differs") for result in verdict.results)
        talk.model = replace(talk.model, verdict=replace(verdict, results=refused))
        talk.ask(ASK)
        node = talk.answer("A ca")
        talk.ask(continues=True)
        assert talk.prompt.segment_reason is None
        assert talk.sent_ids() == node.token_ids().tolist()
        talk.answer("t.<|im_end|>")
        talk.ask(MORE)
        assert talk.prompt.segment_reason == "unstable_template"

    def test_an_aborted_continuation_leaves_the_text_as_it_was(self, talk: Talk) -> None:
        talk.ask(ASK)
        talk.answer("A ca")
        talk.ask(continues=True)
        talk.answer("t.", state="aborted", reply=b"", message_count=1)
        assert [message.content for message in stored(talk)] == [ASK["content"], "A ca"]


class TestPieces:
    @pytest.mark.parametrize(
        ("begun", "answer"),
        [
            (Message("assistant", "A "), Message("assistant", "cat.")),
            (Message("assistant", "", "Let me"), Message("assistant", "A cat.", " look.")),
            (Message("assistant", "A cat", "I look.", name="n"), Message("assistant", ".", name="n")),
        ],
    )
    def test_a_continuation_can_be_told_from_what_it_continued(self, begun: Message, answer: Message) -> None:
        whole = with_prefix(begun.to_json(), answer)
        assert whole.content == begun.content + answer.content
        assert without_prefix(begun.to_json(), whole) == answer
        assert with_prefix(b"", answer) == without_prefix(b"", answer) == answer

    def test_a_format_without_marks_is_never_inside(self) -> None:
        assert not inside("a", "", "", from_start=True)

    def test_a_quoted_sentinel_is_no_end(self) -> None:
        messages, end = open_ended([Message("user", "⟦tito:end⟧"), Message("assistant", "a")])
        assert messages[-1].content == f"a{end}"
        assert end not in messages[0].content

    @pytest.mark.parametrize(
        ("text", "from_start", "expected"),
        [
            ("a", False, False),
            ("a", True, True),
            ("<a> b", False, True),
            ("b </a> c", True, False),
            ("<a> b </a> c", False, False),
            ("b </a> <a> c", True, True),
        ],
    )
    def test_inside_is_after_the_last_opener_and_before_its_closer(
        self, text: str, from_start: bool, expected: bool
    ) -> None:
        assert inside(text, "<a>", "</a>", from_start=from_start) is expected
