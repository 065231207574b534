"""gpt-oss: every message of a reply goes where its header says, and what is no message is still shown."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.models.formats.gpt_oss import GPT_OSS
from adapters.models.reply import Delta, Reply, ToolCall, join
from tests.adapters.replies import deltas_of, formats, marks_of, reply_of

KNOWN = formats("gpt-oss", "gpt-oss")
MARKS = marks_of(special=GPT_OSS.markers)
ANALYSIS = "<|channel|>analysis<|message|>Hm.<|end|>"
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
F = ToolCall("call_0", "f", "{}")


def read(text: str, **options: Any) -> Reply:
    """With the markers as special tokens, in one piece and character by character."""
    marked = MARKS.marked(text)
    whole = reply_of(text, KNOWN, marks=MARKS, **options)
    assert join(deltas_of(list(marked), KNOWN, marks=MARKS, **options)) == whole
    return whole


def test_reasoning_content_and_calls() -> None:
    preamble = "<|start|>assistant<|channel|>commentary<|message|>Let me see.<|end|>"
    assert read(f"{ANALYSIS}{preamble}<|start|>assistant{CALL}") == Reply("Let me see.", "Hm.", (F,))
    assert read(f"{ANALYSIS}<|start|>assistant<|channel|>final<|message|>Sun.<|return|>") == Reply(
        "Sun.", "Hm.", ()
    )


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.f <|constrain|>json",
        "<|channel|>commentary to=functions.f json",
        "<|channel|>commentary to=f",
        "<|channel|>analysis to=functions.f code",
        " to=functions.f<|channel|>commentary json",
        "to=functions.f<|channel|>commentary",
        "<|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json",
    ],
)
def test_every_spelling_of_a_calls_header_counts(header: str) -> None:
    assert read(f"{header}<|message|>{{}}<|call|>") == Reply("", "", (F,))


@pytest.mark.parametrize(
    ("recipient", "name"), [("functions.a.b", "a.b"), ("browser.search", "browser.search"), ("python", "python")]
)
def test_a_recipient_is_the_calls_name(recipient: str, name: str) -> None:
    [call] = read(f'<|channel|>commentary to={recipient}<|message|>{{"a": 1}}<|call|>').calls
    assert (call.name, call.arguments) == (name, '{"a": 1}')


@pytest.mark.parametrize("body", ["print(1)", "[1]", '{"a": }', '{"a": 1} x', '{"a": NaN}'])
def test_a_call_whose_arguments_are_none_is_content_as_it_was_written(body: str) -> None:
    text = CALL.replace("{}", body)
    assert read(f"{ANALYSIS}<|start|>assistant{text}") == Reply(f"<|start|>assistant{text}", "Hm.", ())


def test_a_call_that_ends_like_a_message_is_content() -> None:
    text = CALL.replace("<|call|>", "<|end|>")
    final = "<|start|>assistant<|channel|>final<|message|>Sun."
    assert read(text + final) == Reply(f"{text}Sun.", "", ())
    text = CALL.replace("<|call|>", "")
    assert read(text + final) == Reply(f"{text}Sun.", "", ())


def test_a_call_cut_by_the_limit_is_no_call() -> None:
    for length in range(len("<|channel|>"), len(CALL) - len("<|call|>")):
        assert read(CALL[:length]).calls == ()
        assert reply_of(CALL[:length], KNOWN) == Reply(CALL[:length], "", ())


def test_a_message_cut_by_the_limit_is_shown() -> None:
    assert read("<|channel|>final<|message|>Su") == Reply("Su", "", ())
    assert read("<|channel|>analysis<|message|>Hm") == Reply("", "Hm", ())
    assert read(f"{ANALYSIS}<|start|>assistant<|channel|>comm").content == "<|start|>assistant<|channel|>comm"


@pytest.mark.parametrize("end", ["<|return|>", "<|end|>", "<|call|>", " ", ""])
def test_a_marker_that_ends_nothing_leaves_no_trace(end: str) -> None:
    assert read(f"<|channel|>final<|message|>Sun.<|return|>{end}") == Reply("Sun.", "", ())


def test_a_quoted_marker_is_text() -> None:
    text = MARKS.marked("<|channel|>final<|message|>") + "Write <|end|> to end."
    assert join(deltas_of([text], KNOWN, marks=MARKS)).content == "Write <|end|> to end."
    text = MARKS.marked(CALL).replace("{}", '{"a": "<|call|>"}')
    assert join(deltas_of([text], KNOWN, marks=MARKS)).calls[0].arguments == '{"a": "<|call|>"}'


@pytest.mark.parametrize("text", ["", " ", "Just text.", "total", "to be", "\n\nText <b>"])
def test_a_reply_without_markers_is_content(text: str) -> None:
    assert read(text) == Reply(text, "", ())


def test_without_tools_a_call_is_content() -> None:
    assert read(f"{ANALYSIS}<|start|>assistant{CALL}", tools=None).content == f"<|start|>assistant{CALL}"


def test_either_format_may_be_left_out() -> None:
    text = MARKS.marked(f"{ANALYSIS}<|start|>assistant{CALL}")
    calls_only = join(deltas_of([text], formats("gpt-oss"), marks=MARKS))
    assert calls_only == Reply("Hm.", "", (F,))
    split_only = join(deltas_of([text], formats(None, "gpt-oss"), marks=MARKS))
    assert split_only == Reply(f"<|start|>assistant{CALL}", "Hm.", ())


def test_text_flows_and_a_call_comes_when_it_is_closed() -> None:
    pieces = [
        "<|channel|>final<|message|>Sun",
        "ny.",
        "<|end|>",
        f"<|start|>assistant{CALL}".replace("<|call|>", ""),
    ]
    marked = [MARKS.marked(piece) for piece in pieces]
    known = deltas_of(marked, KNOWN, marks=MARKS)
    assert known[:2] == [Delta("content", "Sun"), Delta("content", "ny.")]
    long = CALL.replace("{}", '{"a": "' + "x " * 400 + '"}')
    deltas = deltas_of(list(MARKS.marked(long)), KNOWN, marks=MARKS)
    assert [delta.kind for delta in deltas] == ["tool_call"]
    nested = CALL.replace("{}", '{"a": "' + "x <|end|> " * 100 + '"}')
    assert len(read(nested).calls) == 1


def test_a_marker_split_over_pieces_is_found_where_it_is_plain_text() -> None:
    text = f"{ANALYSIS}<|start|>assistant<|channel|>final<|message|>a < b <|<|return|>"
    expected = Reply("a < b <|", "Hm.", ())
    for position in range(len(text)):
        assert join(deltas_of([text[:position], text[position:]], KNOWN)) == expected, position
