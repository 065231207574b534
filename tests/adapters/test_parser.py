"""One parser for streamed and whole replies: any split gives the same reply."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.models.formats import HERMES, THINK, ReasoningFormat, ToolFormat
from adapters.models.marks import Marks
from adapters.models.parser import ReplyParser
from adapters.models.reply import Delta, Reply, ToolCall, join

TOKENS = {1: "<think>", 2: "</think>", 3: "<tool_call>", 4: "</tool_call>", 5: "<|pad|>"}
MARKS = Marks(TOKENS, frozenset({5}))
UNMARKED = Marks({}, frozenset())
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
BROKEN = "<tool_call>\n{broken\n</tool_call>"
LOOK = ToolCall("call_0", "look", '{"at": 1}')


def parser(
    marks: Marks = MARKS,
    tools: ToolFormat | None = HERMES,
    reasoning: ReasoningFormat | None = THINK,
    reasoning_open: bool = False,
) -> ReplyParser:
    return ReplyParser(marks, tools, reasoning, reasoning_open=reasoning_open, new_id=lambda n: f"call_{n}")


def deltas_of(pieces: Sequence[str], reader: ReplyParser) -> list[Delta]:
    return [delta for piece in pieces for delta in reader.feed(piece)] + reader.finish()


def reply_of(text: str, *, reasoning_open: bool = False, tools: ToolFormat | None = HERMES) -> Reply:
    """The reply to `text`, in which every spelling of a control token is that token."""
    return join(deltas_of([MARKS.marked(text)], parser(tools=tools, reasoning_open=reasoning_open)))


def content(text: str) -> Reply:
    return Reply(text, "", ())


fragments = st.sampled_from(
    [
        *TOKENS.values(),
        " ",
        "\n",
        "\n\n",
        "a",
        "text",
        "<",
        "<tool",
        "_call>",
        "</",
        "think>",
        CALL,
        BROKEN,
        "{}",
        "🎉",
    ]
)
samples = st.lists(fragments, max_size=10).map("".join)
cuts = st.lists(st.integers(0, 200), max_size=10)


def split(text: str, positions: list[int]) -> list[str]:
    edges = [0, *sorted(position % (len(text) + 1) for position in positions), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


class TestEverySplit:
    @settings(deadline=None, max_examples=400)
    @given(samples, cuts, st.booleans())
    def test_of_text_with_control_tokens_gives_one_reply(
        self, text: str, positions: list[int], reasoning_open: bool
    ) -> None:
        marked = MARKS.marked(text)
        whole = deltas_of([marked], parser(reasoning_open=reasoning_open))
        pieces = deltas_of(split(marked, positions), parser(reasoning_open=reasoning_open))
        characters = deltas_of(list(marked), parser(reasoning_open=reasoning_open))
        assert join(pieces) == join(whole) == join(characters)

    @settings(deadline=None, max_examples=400)
    @given(samples, cuts, st.booleans())
    def test_of_text_whose_markers_are_spelled_out_gives_one_reply(
        self, text: str, positions: list[int], reasoning_open: bool
    ) -> None:
        whole = deltas_of([text], parser(UNMARKED, reasoning_open=reasoning_open))
        pieces = deltas_of(split(text, positions), parser(UNMARKED, reasoning_open=reasoning_open))
        assert join(pieces) == join(whole)

    @settings(deadline=None, max_examples=200)
    @given(samples)
    def test_without_any_format_text_passes_unchanged(self, text: str) -> None:
        reader = parser(tools=None, reasoning=None)
        assert join(deltas_of(list(text), reader)) == content(text)

    @pytest.mark.parametrize("text", ["Hello", f"a{CALL}", "<think>\nx\n</think>\n\ny", f"{BROKEN} on"])
    def test_in_two_gives_one_reply(self, text: str) -> None:
        marked = MARKS.marked(text)
        for position in range(len(marked) + 1):
            pieces = [marked[:position], marked[position:]]
            assert join(deltas_of(pieces, parser())) == reply_of(text), position

    def test_empty_deltas_are_never_given_out(self) -> None:
        text = MARKS.marked(f"<think>\n\n</think>\n\n{CALL}\n<|pad|>")
        deltas = deltas_of(list(text), parser())
        assert [delta.kind for delta in deltas] == ["tool_call"]


class TestReasoning:
    def test_it_is_told_from_the_content_and_loses_the_white_space_around_it(self) -> None:
        assert reply_of("<think>\nLet me see.\n\n</think>\n\nA cat.") == Reply("A cat.", "Let me see.", ())

    def test_white_space_inside_it_stays(self) -> None:
        assert reply_of("<think>\n one\n\n two </think>x").reasoning == " one\n\n two"

    def test_it_may_be_opened_by_the_prompt(self) -> None:
        """Public case 22: the completion has the closer alone."""
        reply = reply_of("2+2 equals 4.\n</think>\n\nThe answer is 4.", reasoning_open=True)
        assert reply == Reply("The answer is 4.", "2+2 equals 4.", ())

    def test_a_closer_without_an_opener_is_text(self) -> None:
        assert reply_of("2+2\n</think>\n\n4") == content("2+2\n</think>\n\n4")

    def test_it_opens_at_the_start_alone(self) -> None:
        assert reply_of("x<think>y</think>") == content("x<think>y</think>")
        assert reply_of(" \n<think>y</think>z") == Reply("z", "y", ())

    def test_an_opener_inside_it_is_its_text(self) -> None:
        assert reply_of("<think>a<think>b</think>c") == Reply("c", "a<think>b", ())

    def test_calls_inside_it_are_its_text(self) -> None:
        assert reply_of(f"<think>{CALL}</think>ok") == Reply("ok", CALL, ())

    def test_what_is_never_closed_is_reasoning(self) -> None:
        assert reply_of("<think>\nand on and on\n") == Reply("", "and on and on", ())

    def test_empty_reasoning_is_none(self) -> None:
        assert reply_of("<think>\n\n</think>\n\nHi") == content("Hi")

    def test_a_reply_that_only_looks_like_an_opener_is_text(self) -> None:
        reader = parser(UNMARKED)
        assert join(deltas_of(["<thi"], reader)) == content("<thi")

    def test_a_family_without_reasoning_opens_none(self) -> None:
        reader = parser(reasoning=None, reasoning_open=True)
        assert join(deltas_of([MARKS.marked("<think>x</think>y")], reader)) == content("<think>x</think>y")


class TestCalls:
    def test_a_call_is_read(self) -> None:
        assert reply_of(CALL) == Reply("", "", (LOOK,))

    def test_parallel_calls_are_numbered_and_the_space_between_them_is_nothing(self) -> None:
        assert reply_of(f"{CALL}\n{CALL}\n") == Reply("", "", (LOOK, ToolCall("call_1", "look", '{"at": 1}')))

    def test_text_before_loses_its_trailing_space_and_text_behind_is_kept(self) -> None:
        assert reply_of(f"I look.\n\n{CALL}") == Reply("I look.", "", (LOOK,))
        assert reply_of(f"I look. {CALL}\nDone. ") == Reply("I look.\nDone. ", "", (LOOK,))

    def test_white_space_behind_the_last_call_is_nothing(self) -> None:
        """Public case 35."""
        assert reply_of(f"a{CALL} \n\n") == Reply("a", "", (LOOK,))

    def test_reasoning_content_and_call_are_all_there(self) -> None:
        assert reply_of(f"<think>\nr\n</think>\n\nc\n{CALL}") == Reply("c", "r", (LOOK,))

    def test_a_malformed_call_is_raw_text_and_what_follows_is_read(self) -> None:
        assert reply_of(f"a\n{BROKEN} b") == content(f"a\n{BROKEN} b")
        assert reply_of(f"{BROKEN}\n{CALL}") == Reply(BROKEN, "", (LOOK,))

    def test_a_call_cut_by_the_limit_is_no_call(self) -> None:
        """Public case 37."""
        for length in range(len("<tool_call>"), len(CALL) - len("</tool_call>")):
            assert reply_of(f"a {CALL[:length]}") == content(f"a {CALL[:length]}")

    def test_control_tokens_inside_a_call_are_its_text(self) -> None:
        reply = reply_of('<tool_call>{"name": "say", "arguments": {"t": "<think>"}}</tool_call>')
        assert reply.calls == (ToolCall("call_0", "say", '{"t": "<think>"}'),)

    def test_a_call_in_a_call_is_malformed(self) -> None:
        text = f"<tool_call>{CALL}"
        assert reply_of(text) == content(text)

    def test_a_closer_alone_is_text(self) -> None:
        assert reply_of("a</tool_call>b") == content("a</tool_call>b")

    def test_markers_that_the_model_spells_out_are_text(self) -> None:
        """Public case 55: the tokenizer has such a token, and this is not it."""
        assert join(deltas_of([CALL], parser())) == content(CALL)

    def test_markers_are_spelled_out_where_the_tokenizer_has_no_such_token(self) -> None:
        assert join(deltas_of([f"a {CALL}"], parser(UNMARKED))) == Reply("a", "", (LOOK,))

    def test_a_call_is_text_when_none_are_wanted(self) -> None:
        assert reply_of(f"a {CALL}", tools=None) == content(f"a {CALL}")

    def test_a_marker_may_begin_like_itself(self) -> None:
        doubled = ToolFormat("<<call>", "<<end>", HERMES.parse)
        text = 'a<<<call>{"name": "look", "arguments": {"at": 1}}<<<end>b'
        for pieces in ([text], list(text)):
            broken = join(deltas_of(pieces, parser(UNMARKED, tools=doubled)))
            assert broken == content(text)  # the body ends in "<", which is no JSON
        text = text.replace("<<<end>", "<<end>")
        for pieces in ([text], list(text)):
            assert join(deltas_of(pieces, parser(UNMARKED, tools=doubled))) == Reply("a<b", "", (LOOK,))

    def test_a_call_is_given_out_as_soon_as_it_is_closed(self) -> None:
        reader = parser()
        assert reader.feed(MARKS.marked(CALL)[:-1]) == []
        assert reader.feed(MARKS.marked(CALL)[-1]) == [Delta("tool_call", call=LOOK)]


class TestContent:
    def test_white_space_around_plain_content_stays(self) -> None:
        assert reply_of("\n\n a b \n") == content("\n\n a b \n")
        assert reply_of("  \n") == content("  \n")
        assert reply_of("") == content("")

    def test_content_is_given_out_at_once_but_for_trailing_space(self) -> None:
        reader = parser()
        assert reader.feed("Hello ") == [Delta("content", "Hello")]
        assert reader.feed("there") == [Delta("content", " there")]
        assert reader.finish() == []

    def test_nothing_changes_nothing(self) -> None:
        for reader in (parser(), parser(reasoning=None), parser(tools=None, reasoning=None)):
            assert [*reader.feed(""), *reader.feed(""), *reader.finish()] == []

    def test_special_tokens_are_not_shown(self) -> None:
        assert reply_of("a<|pad|>b<|pad|>") == content("ab")

    def test_what_may_be_a_marker_is_held_until_it_is_none(self) -> None:
        reader = parser(UNMARKED)
        assert reader.feed("a<tool_") == [Delta("content", "a")]
        assert reader.feed("box>") == [Delta("content", "<tool_box>")]
