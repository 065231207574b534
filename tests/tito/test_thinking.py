"""`--history-thinking template`: prompts show the reasoning that the template shows; a segment starts for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.models.templates import template_file
from sidecar.model_files import read_model
from sidecar.tito.delta import PromptBuilder
from sidecar.tito.messages import Message
from sidecar.tito.model import Model, build_model
from sidecar.tito.modes import BuildModes
from sidecar.tito.plan import render
from sidecar.tito.records import BreakReason
from sidecar.tito.segments import plan_segments
from sidecar.tito.thinking import first_changed
from tests.tito.builders import TOOLS
from tests.tito.columns import segment_arrays
from tests.tito.talk import Talk

TEMPLATE = BuildModes(history_thinking="template")
ASK = {"role": "user", "content": "What is behind the door?"}
MORE = {"role": "user", "content": "Sure?"}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "door"}}\n</tool_call><|im_end|>'
COMPACT = '<tool_call>\n{"name":"look","arguments":{"at":"door"}}\n</tool_call><|im_end|>'
OTHER_TOOLS: list[dict[str, Any]] = [{**TOOLS[0], "function": {**TOOLS[0]["function"], "name": "peek"}}]


@pytest.fixture
def talk(qwen3: Model) -> Talk:
    return Talk(qwen3, modes=TEMPLATE)


@pytest.fixture(scope="module")
def keeping(qwen3_dir: Path) -> Model:
    """Qwen3 with our template that keeps earlier reasoning."""
    return build_model(read_model(str(qwen3_dir), template_file("qwen3-keep-thinking")))


def thought(text: str, then: str = "A cat.<|im_end|>") -> str:
    """A reply as Qwen3 samples it."""
    return f"<think>\n{text}\n</think>\n\n{then}"


def result(talk: Talk) -> dict[str, Any]:
    """The result of the last reply's call."""
    return {"role": "tool", "tool_call_id": talk.reply.calls[0].id, "content": "a cat"}


def forget(talk: Talk) -> None:
    """The client drops the last reply's reasoning, as most do."""
    del talk.wire[-1]["reasoning_content"]


class TestQwen3:
    def test_a_tool_loop_appends_and_the_next_user_message_starts_a_segment(
        self, talk: Talk, qwen3_reference: Any
    ) -> None:
        talk.ask(ASK, tools=TOOLS)
        talk.answer(thought("One.", CALL))
        talk.ask(result(talk), tools=TOOLS)
        assert talk.prompt.segment_reason is None
        talk.answer(thought("Two."))
        whole = [dict(message) for message in talk.wire]
        forget(talk)
        talk.ask(MORE, tools=TOOLS)
        assert talk.prompt.segment_reason == "thinking_template"
        assert talk.prompt.break_reason == BreakReason("thinking_template", 1, "reasoning_content")
        assert talk.sent() == qwen3_reference.apply_chat_template(
            [*map(_with_objects, whole), MORE], tools=TOOLS, add_generation_prompt=True, tokenize=False
        )
        assert "One." not in talk.sent()

    def test_reasoning_that_the_client_dropped_inside_the_loop_is_no_change(self, talk: Talk) -> None:
        talk.ask(ASK, tools=TOOLS)
        node = talk.answer(thought("One.", CALL))
        forget(talk)
        talk.ask(result(talk), tools=TOOLS)
        assert talk.prompt.segment_reason is None
        assert talk.sent_ids()[: node.token_count] == node.token_ids().tolist()

    def test_a_segment_that_starts_in_the_loop_shows_what_the_client_dropped(self, talk: Talk) -> None:
        talk.ask(ASK, tools=TOOLS)
        talk.answer(thought("One.", CALL))
        forget(talk)
        talk.ask(result(talk), tools=OTHER_TOOLS)
        assert talk.prompt.segment_reason == "tools_changed"
        assert "<think>\nOne.\n</think>\n\n<tool_call>" in talk.sent()
        talk.answer(thought("Two.", CALL))
        talk.ask(result(talk), tools=OTHER_TOOLS)
        assert talk.prompt.segment_reason is None
        assert talk.sent().count("One.") == talk.sent().count("Two.") == 1

    def test_ids_that_the_tokenizer_would_not_make_are_no_change(self, talk: Talk) -> None:
        codec = talk.model.codec
        odd = [i for piece in ("<think>\nhe", "llo\n</think>\n\n") for i in codec.encode(piece).tolist()]
        assert codec.encode("<think>\nhello\n</think>\n\n").tolist() != odd
        talk.ask(ASK, tools=TOOLS)
        node = talk.answer([*odd, *codec.encode(CALL).tolist()])
        assert talk.reply.reasoning
        talk.ask(result(talk), tools=TOOLS)
        assert talk.prompt.segment_reason is None
        assert talk.sent_ids()[: node.token_count] == node.token_ids().tolist()

    @pytest.mark.parametrize(
        "sampled",
        [
            [thought("One.", COMPACT)],
            [f"<think>\n\n One. \n</think>\n{CALL}"],
            ["<think>\nUne e", f"\u0301toile.\n</think>\n\n{CALL}"],
        ],
        ids=["a call spaced otherwise", "white space", "decomposed characters"],
    )
    def test_what_is_only_spelled_in_another_way_is_no_change(self, talk: Talk, sampled: list[str]) -> None:
        """Qwen3's tokenizer composes characters, but only those that it encodes together."""
        talk.ask(ASK, tools=TOOLS)
        talk.answer([index for piece in sampled for index in talk.model.codec.encode(piece).tolist()])
        talk.ask(result(talk), tools=TOOLS)
        assert talk.prompt.segment_reason is None
        talk.answer(thought("Two.", CALL))
        talk.ask(result(talk), tools=OTHER_TOOLS)
        assert talk.prompt.segment_reason == "tools_changed"
        talk.answer(CALL)
        talk.ask(result(talk), tools=OTHER_TOOLS)
        assert talk.prompt.segment_reason is None

    def test_replies_without_reasoning_are_one_segment(self, talk: Talk) -> None:
        talk.ask(ASK)
        for _ in range(3):
            talk.answer("A cat.<|im_end|>")
            talk.ask(MORE)
            assert talk.prompt.segment_reason is None

    def test_an_empty_block_is_no_reasoning(self, talk: Talk) -> None:
        """Public case 19: the generation prompt opens and closes it, and history drops it."""
        talk.ask(ASK, enable_thinking=False)
        talk.answer("Hello!<|im_end|>")
        talk.ask(MORE, enable_thinking=False)
        assert talk.prompt.segment_reason is None
        talk.wire.clear()
        talk.ask(ASK)
        talk.answer(thought("", "A cat.<|im_end|>"))
        talk.ask(MORE)
        assert talk.prompt.segment_reason is None

    def test_reasoning_cut_by_length_is_dropped_too(self, talk: Talk) -> None:
        talk.ask(ASK)
        talk.answer("<think>\nI look and")
        talk.ask(MORE)
        assert talk.prompt.segment_reason == "thinking_template"
        assert "I look" not in talk.sent()
        assert talk.sent().count("<|im_end|>") == 3

    def test_dropped_reasoning_goes_before_another_stop_token(self, talk: Talk) -> None:
        talk.ask(ASK)
        talk.answer("A cat.<|endoftext|>")
        talk.ask(MORE)
        assert talk.prompt.segment_reason == "stop_trimmed"
        talk.answer(thought("One.", "A cat.<|endoftext|>"))
        talk.ask(MORE)
        assert talk.prompt.segment_reason == "thinking_template"
        assert "<|endoftext|>" not in talk.sent()

    def test_a_foreign_turns_reasoning_counts_as_well(self, talk: Talk) -> None:
        talk.ask(
            ASK, {"role": "assistant", "content": "", "reasoning_content": "Theirs.", "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            ]}, {"role": "tool", "tool_call_id": "c", "content": "a cat"}, tools=TOOLS,
        )  # fmt: skip
        assert "Theirs." in talk.sent()
        talk.answer("A cat.<|im_end|>")
        talk.ask(MORE, tools=TOOLS)
        assert talk.prompt.break_reason == BreakReason("thinking_template", 1, "reasoning_content")
        assert "Theirs." not in talk.sent()


class TestOtherTemplates:
    def test_one_that_keeps_reasoning_gives_one_segment(self, keeping: Model) -> None:
        talk = Talk(keeping, modes=TEMPLATE)
        talk.ask(ASK, tools=TOOLS)
        for number in range(3):
            talk.answer(thought(f"Thought {number}.", COMPACT))
            forget(talk)
            talk.ask(result(talk), tools=TOOLS)
            talk.answer(thought(f"Answer {number}."))
            talk.ask(MORE, tools=TOOLS)
        assert [node.record.segment_reason for node in talk.trajectory] == ["root", None, None, None, None, None]
        assert talk.prompt.segment_reason is None
        assert all(f"<think>\nThought {n}.\n</think>" in talk.sent() for n in range(3))

    def test_a_cut_thought_is_closed_once_and_goes_on_where_the_template_shows_it(self, keeping: Model) -> None:
        talk = Talk(keeping, modes=TEMPLATE)
        talk.ask(ASK)
        talk.answer("<think>\nI look and")
        talk.ask(MORE)
        assert talk.prompt.segment_reason is None
        assert "<think>\nI look and<|im_end|>\n<|im_start|>user\nSure?" in talk.sent()

    def test_keep_mode_never_renders_the_whole_conversation(
        self, qwen3: Model, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        talk = Talk(qwen3)
        talk.ask(ASK)
        talk.answer(thought("One."))

        def refuse(*_: object) -> None:
            raise AssertionError("rendered in full")

        monkeypatch.setattr(PromptBuilder, "rendering", refuse)
        talk.ask(MORE)
        assert talk.prompt.segment_reason is None
        with pytest.raises(AssertionError, match="rendered in full"):
            render(qwen3, replace(talk.placement, modes=TEMPLATE))


class TestFirstChanged:
    MESSAGES = (Message("user", "u"), Message("assistant", "a", "one"), Message("assistant", "b", " two \n"))

    @pytest.mark.parametrize(
        ("stream", "printed", "expected"),
        [
            ("x one y two", "x one y two", None),
            ("one, two", "<one> <two>", None),
            ("one two", "two", 1),
            ("one two", "one", 2),
            ("", "one two", 1),
            ("one two", "one two one", 1),
        ],
    )
    def test_it_is_the_first_whose_reasoning_one_text_lacks(
        self, stream: str, printed: str, expected: int | None
    ) -> None:
        assert first_changed(self.MESSAGES, stream, printed) == expected

    def test_no_reasoning_never_changes(self) -> None:
        assert first_changed([Message("user", "u"), Message("assistant", "a", " ")], "a", "b") is None


@dataclass(frozen=True)
class Turn:
    """What the model does in a turn, and whether its client replays the reasoning."""

    reasons: bool
    calls: bool
    replayed: bool


TURNS = st.lists(st.builds(Turn, st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=6)


class TestAnyConversation:
    @settings(deadline=None, max_examples=60)
    @given(turns=TURNS, keeps=st.booleans())
    def test_every_prompt_shows_what_the_template_shows_and_every_token_trains_once(
        self, qwen3: Model, keeping: Model, qwen3_reference: Any, turns: list[Turn], keeps: bool
    ) -> None:
        model = keeping if keeps else qwen3
        talk, whole = Talk(model, modes=TEMPLATE), [dict(ASK)]
        talk.ask(ASK, tools=TOOLS)
        for number, turn in enumerate(turns):
            said = CALL if turn.calls else f"Answer {number}.<|im_end|>"
            node = talk.answer(thought(f"Thought {number}.", said) if turn.reasons else said)
            whole.append(dict(talk.wire[-1]))
            if turn.reasons and not turn.replayed:
                forget(talk)
            following = result(talk) if turn.calls else {"role": "user", "content": f"Question {number}?"}
            whole.append(following)
            talk.ask(following, tools=TOOLS)
            printed = qwen3_reference.apply_chat_template(
                [_with_objects(message) for message in whole],
                tools=TOOLS,
                add_generation_prompt=True,
                tokenize=False,
                chat_template=model.builder.template.source,
            )
            for shown in range(number + 1):
                marker = f"Thought {shown}."
                assert talk.sent().count(marker) == printed.count(marker)
            if talk.prompt.segment_reason is None:
                assert talk.sent_ids()[: node.token_count] == node.token_ids().tolist()
            else:
                assert not keeps
                assert talk.prompt.segment_reason == "thinking_template"
                assert talk.sent() == printed
        trained: list[int] = []
        for plan in plan_segments(talk.trajectory):
            arrays = segment_arrays(plan)
            trained += [t for t, m in zip(arrays["tokens"], arrays["full_loss_mask"], strict=True) if m]
        sampled = [token for node in talk.trajectory for token in node.record.output_ids.tolist()]
        assert sorted(trained) == sorted(sampled)


def _with_objects(message: dict[str, Any]) -> dict[str, Any]:
    """A message as the template wants it: a call's arguments are an object, and content is always there."""
    calls = [{"function": {"name": "look", "arguments": {"at": "door"}}} for _ in message.get("tool_calls") or ()]
    return {**message, "content": message.get("content") or "", **({"tool_calls": calls} if calls else {})}
