"""One parser for streamed and whole replies: any split gives the same reply."""

from __future__ import annotations

from collections.abc import Sequence
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.models.formats.hermes import json_block
from adapters.models.marks import Marks
from adapters.models.parser import Parser
from adapters.models.parsers import Parsers, ReplyFormats
from adapters.models.reply import Delta, Reply, ToolCall, join
from tests.adapters.replies import UNMARKED, formats, split

TOKENS = {1: "<think>", 2: "</think>", 3: "<tool_call>", 4: "</tool_call>", 5: "<|pad|>"}
MARKS = Marks(TOKENS, frozenset({5}))
QWEN3 = formats("hermes", "think")
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
BROKEN = "<tool_call>\n{broken\n</tool_call>"
LOOK = ToolCall("call_0", "look", '{"at": 1}')


def parser(
    marks: Marks = MARKS, known: ReplyFormats = QWEN3, *, use_tools: bool = True, reasoning_open: bool = False
) -> Parser:
    tail = "<think>" if reasoning_open else ""
    return Parsers(marks, known).parser(tail, use_tools, (), lambda n: f"call_{n}")


def deltas_of(pieces: Sequence[str], reader: Parser) -> list[Delta]:
    return [delta for piece in pieces for delta in reader.feed(piece)] + reader.finish()


def reply_of(text: str, *, reasoning_open: bool = False, use_tools: bool = True) -> Reply:
    """The reply to `text`, in which every spelling of a control token is that token."""
    reader = parser(use_tools=use_tools, reasoning_open=reasoning_open)
    return join(deltas_of([MARKS.marked(text)], reader))


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
        assert join(deltas_of(list(text), parser(UNMARKED, ReplyFormats()))) == content(text)

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

    def test_openers_at_its_start_are_dropped_however_many(self) -> None:
        assert reply_of("<think>\n<think>a</think>c") == Reply("c", "a", ())
        assert reply_of("<think>\na</think>c", reasoning_open=True) == Reply("c", "a", ())

    def test_a_call_ends_it_if_nothing_else_does(self) -> None:
        for text in (f"<think>Hm.\n{CALL}", f"<think>Hm.\n{CALL}\n"):
            marked = MARKS.marked(text)
            assert join(deltas_of(list(marked), parser())) == reply_of(text) == Reply("", "Hm.", (LOOK,))
        assert reply_of(f"Hm.\n{CALL} Done", reasoning_open=True) == Reply("Done", "Hm.", (LOOK,))

    def test_what_is_no_call_does_not_end_it(self) -> None:
        assert reply_of(f"<think>I {BROKEN} on") == Reply("", f"I {BROKEN} on", ())
        assert reply_of(f"<think>I {BROKEN} then {CALL}") == Reply("", f"I {BROKEN} then", (LOOK,))
        assert reply_of(f"<think>I {CALL[:20]}") == Reply("", f"I {CALL[:20]}", ())

    def test_it_flows_on_behind_an_opener_that_is_no_calls(self) -> None:
        reader = parser()
        assert reader.feed(MARKS.marked("<think>I write <tool_call>")) == [Delta("reasoning", "I write")]
        assert join(reader.feed(" tags")).reasoning == " <tool_call> tags"

    def test_a_call_in_it_is_held_until_it_is_known_whether_it_is_closed(self) -> None:
        reader = parser()
        assert reader.feed(MARKS.marked(f"<think>a {CALL} b {'c' * 300} {CALL}")) == [Delta("reasoning", "a")]
        assert reader.feed(" d") == []
        rest = join(reader.feed(MARKS.marked("</think>")))
        assert rest == Reply("", f" {CALL} b {'c' * 300} {CALL} d", ())

    def test_what_is_never_closed_is_reasoning(self) -> None:
        assert reply_of("<think>\nand on and on\n") == Reply("", "and on and on", ())

    def test_empty_reasoning_is_none(self) -> None:
        assert reply_of("<think>\n\n</think>\n\nHi") == content("Hi")

    def test_a_reply_that_only_looks_like_an_opener_is_text(self) -> None:
        reader = parser(UNMARKED)
        assert join(deltas_of(["<thi"], reader)) == content("<thi")

    def test_a_family_without_reasoning_opens_none(self) -> None:
        reader = parser(known=formats("hermes"), reasoning_open=True)
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

    def test_an_opener_without_a_call_is_text_and_the_call_behind_it_is_read(self) -> None:
        assert reply_of(f"<tool_call>{CALL}") == Reply("<tool_call>", "", (LOOK,))
        assert reply_of(f"Use <tool_call>. {CALL}") == Reply("Use <tool_call>.", "", (LOOK,))

    def test_text_flows_on_behind_an_opener_that_is_no_calls(self) -> None:
        reader = parser()
        assert reader.feed(MARKS.marked("Use <tool_call>")) == [Delta("content", "Use")]
        assert reader.feed(" to") == [Delta("content", " <tool_call>"), Delta("content", " to")]

    def test_a_closer_inside_a_string_is_its_text(self) -> None:
        made = '<tool_call>{"name": "look", "arguments": {"at": "</tool_call>"}}</tool_call>'
        assert reply_of(made).calls == (ToolCall("call_0", "look", '{"at": "</tool_call>"}'),)

    def test_white_space_behind_a_call_is_nothing_before_the_first_text_and_kept_after_it(self) -> None:
        assert reply_of(f"{CALL}\n\nDone.") == Reply("Done.", "", (LOOK,))
        assert reply_of(f"Hm. {CALL}\n\nDone.") == Reply("Hm.\n\nDone.", "", (LOOK,))
        marked = MARKS.marked(f"{CALL}<|pad|>\n\nDone.")
        assert join(deltas_of([marked], parser())) == join(deltas_of(list(marked), parser()))

    def test_a_long_call_is_given_out_as_soon_as_it_is_closed(self) -> None:
        text = MARKS.marked(CALL.replace("1", '"' + "x " * 500 + '"'))
        reader = parser()
        assert [delta for character in text[:-1] for delta in reader.feed(character)] == []
        assert [delta.kind for delta in reader.feed(text[-1])] == ["tool_call"]

    def test_a_model_stuck_on_an_opener_costs_no_more_than_its_text(self) -> None:
        """Each opener could be read to the end of the reply: 20,000 of them took minutes."""
        text = MARKS.marked('<tool_call>{"name": "' * 20_000)
        began = process_time()
        assert len(join(deltas_of([text], parser())).content) == 20_000 * 21
        assert process_time() - began < 20

    def test_after_thirty_two_openers_without_a_call_an_opener_is_text(self) -> None:
        text = MARKS.marked("<tool_call>!" * 32 + CALL)
        for pieces in ([text], list(text)):
            assert join(deltas_of(pieces, parser())) == content("<tool_call>!" * 32 + CALL)
        text = MARKS.marked("<tool_call>!" * 31 + CALL)
        assert join(deltas_of([text], parser())).calls == (LOOK,)
        inside = MARKS.marked("<think>" + "<tool_call>!" * 32 + CALL)
        for pieces in ([inside], list(inside)):
            assert not join(deltas_of(pieces, parser())).calls

    def test_a_closer_alone_is_text(self) -> None:
        assert reply_of("a</tool_call>b") == content("a</tool_call>b")

    def test_markers_that_the_model_spells_out_are_text(self) -> None:
        """Public case 55: the tokenizer has such a token, and this is not it."""
        assert join(deltas_of([CALL], parser())) == content(CALL)

    def test_markers_are_spelled_out_where_the_tokenizer_has_no_such_token(self) -> None:
        assert join(deltas_of([f"a {CALL}"], parser(UNMARKED))) == Reply("a", "", (LOOK,))

    def test_a_call_is_text_when_none_are_wanted(self) -> None:
        assert reply_of(f"a {CALL}", use_tools=False) == content(f"a {CALL}")

    def test_a_marker_may_begin_like_itself(self) -> None:
        doubled = ReplyFormats(json_block("doubled", "<<call>", "<<end>"))
        text = 'a<<<call>{"name": "look", "arguments": {"at": 1}}<<<end>b'
        for pieces in ([text], list(text)):
            broken = join(deltas_of(pieces, parser(UNMARKED, doubled)))
            assert broken == content(text)  # behind the JSON stands a "<" too many
        text = text.replace("<<<end>", "<<end>")
        for pieces in ([text], list(text)):
            assert join(deltas_of(pieces, parser(UNMARKED, doubled))) == Reply("a<b", "", (LOOK,))

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
        for reader in (parser(), parser(known=formats("hermes")), parser(known=ReplyFormats())):
            assert [*reader.feed(""), *reader.feed(""), *reader.finish()] == []

    def test_special_tokens_are_not_shown(self) -> None:
        assert reply_of("a<|pad|>b<|pad|>") == content("ab")

    def test_markers_of_the_formats_are_shown_even_if_they_are_special(self) -> None:
        special = Marks(TOKENS, frozenset(TOKENS))
        for text in ("a</tool_call>b", "a</think>b", BROKEN, f"a {CALL[:25]}"):
            assert join(deltas_of([special.marked(text)], parser(special))) == content(text)

    def test_what_may_be_a_marker_is_held_until_it_is_none(self) -> None:
        reader = parser(UNMARKED)
        assert reader.feed("a<tool_") == [Delta("content", "a")]
        assert reader.feed("box>") == [Delta("content", "<tool_box>")]
