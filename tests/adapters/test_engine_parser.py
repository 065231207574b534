"""`engine`: which of the engine's parsers is asked, what it is asked, and what becomes of its answer."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.engines.base import ContractError
from adapters.engines.sglang_parsers import endpoint_of, parse_body, probe, read_answer
from adapters.models.engine_parser import Answer, EngineParser, Question
from adapters.models.formats import REASONING_FORMATS, TOOL_FORMATS
from adapters.models.formats.base import Call
from adapters.models.held import HeldReply
from adapters.models.marks import Marks
from adapters.models.parsers import Parsers, ReplyFormats
from adapters.models.registry import find_family
from adapters.models.reply import Reply, ToolCall, join, spread
from adapters.models.selection import ParserChoice, choose_formats
from tests.adapters.replies import UNMARKED, marks_of

CALLS = EngineParser("calls", "okapi")
REASONING = EngineParser("reasoning", "okapi")
UNKNOWN = "[INST]{{ tools }}"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "description": "d", "parameters": {"type": "object"}, "strict": True},
}


def chosen(choice: ParserChoice, template: str = UNKNOWN) -> ReplyFormats:
    return choose_formats(find_family("auto", template), template, choice)


def held(
    text: str,
    engine: EngineParser,
    *,
    tail: str = "",
    marks: Marks = UNMARKED,
    use_tools: bool = True,
    **known: Any,
) -> HeldReply:
    """The reply `text`, complete."""
    formats = ReplyFormats(engine=engine, **known)
    parser = Parsers(marks, formats).parser(tail, use_tools, [TOOL], lambda n: f"call_s_{n}")
    assert isinstance(parser, HeldReply)
    for character in marks.marked(text):
        assert parser.feed(character) == []
    assert parser.finish() == []
    return parser


class TestChoice:
    def test_the_name_is_the_one_that_the_engine_reports(self) -> None:
        formats = chosen(ParserChoice("engine", "none", "okapi", "other"))
        assert (formats.engine, formats.tools, formats.calls_name) == (CALLS, None, "engine")
        formats = chosen(ParserChoice("none", "engine", "other", "okapi"))
        assert (formats.engine, formats.reasoning, formats.reasoning_name) == (REASONING, None, "engine")

    def test_a_template_of_no_family_needs_no_warning_then(self) -> None:
        assert chosen(ParserChoice("engine", "auto", "okapi")).warnings == ()

    def test_a_parser_that_is_known_here_is_told_to_be_better_off_with_auto(self) -> None:
        [warning] = chosen(ParserChoice("engine", reported_tool_calls="qwen25")).warnings
        assert "--tool-call-parser is engine, whose parser 'qwen25' is known here too" in warning

    @pytest.mark.parametrize("reported", [None, "", " ", 3])
    def test_an_engine_without_a_usable_name_is_refused_with_the_remedy(self, reported: Any) -> None:
        with pytest.raises(ValueError, match=r"--tool-call-parser is 'engine', but .* start SGLang with"):
            chosen(ParserChoice("engine", reported_tool_calls=reported, reported_reasoning="okapi"))
        with pytest.raises(
            ValueError, match=r"--reasoning-parser is 'engine', but .* set --reasoning-parser to auto"
        ):
            chosen(ParserChoice("none", "engine", "okapi", reported))

    def test_both_at_once_are_refused_since_a_step_asks_once(self) -> None:
        with pytest.raises(ValueError, match="a step asks the engine once at most"):
            chosen(ParserChoice("engine", "engine", "okapi", "okapi"))

    @pytest.mark.parametrize(
        "choice", [ParserChoice("engine", "gpt-oss", "x"), ParserChoice("gpt-oss", "engine", "", "x")]
    )
    def test_gpt_oss_is_read_as_a_whole_or_not_at_all(self, choice: ParserChoice) -> None:
        with pytest.raises(ValueError, match="gpt-oss goes with gpt-oss or none"):
            chosen(choice)

    def test_where_there_is_no_engine_nothing_is_left_to_it(self) -> None:
        assert ParserChoice("engine", "qwen3").without_engine() == ParserChoice("none", "qwen3")
        assert ParserChoice("auto", "engine").without_engine() == ParserChoice("auto", "none")


class TestWire:
    def test_calls_are_asked_for_as_sglang_wants_it(self) -> None:
        question = Question(CALLS, "text", [TOOL, {"type": "function", "function": {"name": "bare"}}])
        assert endpoint_of(CALLS) == "/parse_function_call"
        assert parse_body(question) == {
            "text": "text",
            "tool_call_parser": "okapi",
            "tools": [
                {
                    "type": "function",
                    "function": {"name": "look", "description": "d", "parameters": {"type": "object"}},
                },
                {"type": "function", "function": {"name": "bare"}},
            ],
        }

    def test_reasoning_is_asked_for_as_sglang_wants_it(self) -> None:
        assert endpoint_of(REASONING) == "/separate_reasoning"
        assert parse_body(Question(REASONING, "text", [TOOL])) == {"text": "text", "reasoning_parser": "okapi"}

    def test_the_probe_has_a_tool_since_some_parsers_fail_only_then(self) -> None:
        assert parse_body(probe(CALLS))["tools"]

    def test_an_answer_has_text_and_calls_in_their_order(self) -> None:
        reply = {
            "normal_text": "Hm.",
            "calls": [
                {"tool_index": 0, "name": "b", "parameters": '{"x": "ü"}'},
                {"tool_index": 0, "name": "a", "parameters": "{}"},
            ],
        }
        answer = read_answer(Question(CALLS, "t"), reply)
        assert answer == Answer("Hm.", calls=(Call("b", '{"x": "ü"}'), Call("a", "{}")))
        reasoned = read_answer(Question(REASONING, "t"), {"reasoning_text": "hm", "text": None})
        assert reasoned == Answer("", reasoning="hm")

    @pytest.mark.parametrize(
        "reply",
        [
            None,
            [],
            "text",
            {},
            {"normal_text": "a"},
            {"calls": []},
            {"normal_text": 1, "calls": []},
            {"normal_text": "", "calls": {}},
            {"normal_text": "", "calls": ["look"]},
            {"normal_text": "", "calls": [{"name": None, "parameters": "{}"}]},
            {"normal_text": "", "calls": [{"name": "", "parameters": "{}"}]},
            {"normal_text": "", "calls": [{"name": "look", "parameters": {"at": 1}}]},
            {"normal_text": "", "calls": [{"name": "look", "parameters": ""}]},
            {"normal_text": "", "calls": [{"name": "look", "parameters": "[1]"}]},
            {"normal_text": "", "calls": [{"name": "look", "parameters": '{"at": NaN}'}]},
        ],
    )
    def test_what_is_no_answer_is_refused_as_a_whole(self, reply: Any) -> None:
        with pytest.raises(ContractError, match="the engine's parser"):
            read_answer(Question(CALLS, "t"), reply)

    @pytest.mark.parametrize(
        "reply", [None, {}, {"text": "a"}, {"reasoning_text": "a"}, {"reasoning_text": 1, "text": ""}]
    )
    def test_reasoning_has_to_have_both_parts(self, reply: Any) -> None:
        with pytest.raises(ContractError, match="the engine's parser"):
            read_answer(Question(REASONING, "t"), reply)


class TestCalls:
    def test_the_engine_is_asked_about_the_content_alone(self) -> None:
        reply = held("<think>\nhm\n</think>\n\nLet me.\n<<look {}>>", CALLS, reasoning=REASONING_FORMATS["qwen3"])
        question = reply.question(cut=False)
        assert question == Question(CALLS, "Let me.\n<<look {}>>", [TOOL])
        settled = reply.settle(Answer("Let me.\n", calls=(Call("look", "{}"), Call("look", '{"at": 1}'))))
        assert settled == Reply(
            "Let me.", "hm", (ToolCall("call_s_0", "look", "{}"), ToolCall("call_s_1", "look", '{"at": 1}'))
        )
        assert join(spread(settled)) == settled

    def test_control_tokens_are_spelled_out_even_if_they_are_special(self) -> None:
        marks = marks_of("<tool_call>", special=["<|box|>"])
        reply = held("<|box|>a<tool_call>", CALLS, marks=marks)
        question = reply.question(cut=False)
        assert question is not None
        assert question.text == "<|box|>a<tool_call>"

    @pytest.mark.parametrize("answer", [None, Answer(""), Answer("half of it")])
    def test_without_calls_the_text_is_content_as_it_was_written(self, answer: Answer | None) -> None:
        text = "  Let me. <<look {oops>>\n behind "
        assert held(text, CALLS).settle(answer) == Reply(text, "", ())

    def test_a_cut_reply_is_not_asked_about(self) -> None:
        reply = held("<<look {", CALLS)
        assert reply.question(cut=True) is None
        assert reply.settle(None) == Reply("<<look {", "", ())

    @pytest.mark.parametrize("text", ["", " \n", "<think>never closed"])
    def test_a_reply_without_content_is_not_asked_about(self, text: str) -> None:
        assert held(text, CALLS, reasoning=REASONING_FORMATS["qwen3"]).question(cut=False) is None

    def test_calls_that_are_not_wanted_are_not_held(self) -> None:
        parser = Parsers(UNMARKED, ReplyFormats(engine=CALLS)).parser("", False, [TOOL], str)
        assert not isinstance(parser, HeldReply)
        assert [delta.text for delta in parser.feed("text")] == ["text"]


class TestReasoning:
    def test_the_rest_is_read_here_calls_included(self) -> None:
        text = '<mm:think>hm</mm:think>\n\nSo.\n<tool_call>{"name": "look", "arguments": {}}</tool_call>'
        reply = held(text, REASONING, tools=TOOL_FORMATS["hermes"])
        assert reply.question(cut=False) == Question(REASONING, text)
        settled = reply.settle(Answer(text.removeprefix("<mm:think>hm</mm:think>"), reasoning="\nhm\n"))
        assert settled == Reply("So.", "hm", (ToolCall("call_s_0", "look", "{}"),))

    def test_a_cut_reply_is_asked_about_too(self) -> None:
        assert held("<mm:think>hm", REASONING).question(cut=True) is not None

    def test_nothing_is_asked_about_an_empty_reply(self) -> None:
        assert held("", REASONING).question(cut=False) is None

    def test_without_an_answer_all_is_content_and_no_call_is_made_of_a_draft(self) -> None:
        text = '<mm:think>maybe <tool_call>{"name": "look", "arguments": {}}</tool_call>'
        reply = held(text, REASONING, tools=TOOL_FORMATS["hermes"])
        assert reply.settle(None) == Reply(text, "", ())

    def test_the_engine_is_shown_the_marker_that_the_prompt_ends_in(self) -> None:
        marks = marks_of("<mm:think>", "</mm:think>", "<|assistant|>")
        reply = held("hm</mm:think>So.", REASONING, tail="<|assistant|>\n<mm:think>\n", marks=marks)
        question = reply.question(cut=False)
        assert question is not None
        assert question.text == "<mm:think>hm</mm:think>So."
        assert reply.settle(Answer("So.", reasoning="hm")) == Reply("So.", "hm", ())
        assert reply.settle(Answer("<mm:think>So.")).content == "So."  # a parser that does not know the marker
        assert reply.settle(None).content == "hm</mm:think>So."

    @pytest.mark.parametrize("tail", ["<|assistant|>", "<mm:think></mm:think>", "<mm:think> text", ""])
    def test_other_ends_of_a_prompt_open_nothing(self, tail: str) -> None:
        marks = marks_of("<mm:think>", "</mm:think>", "<|assistant|>")
        question = held("So.", REASONING, tail=tail, marks=marks).question(cut=False)
        assert question is not None
        assert question.text == "So."
