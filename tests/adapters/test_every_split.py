"""One parser for streamed and whole replies: any split of any text gives the same reply, in every format."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.models.parsers import ReplyFormats
from adapters.models.reply import Delta, join
from tests.adapters.replies import all_marks, data, deltas_of, reply_of, sample_formats, sample_options, split

SAMPLES: list[dict[str, Any]] = data("samples.json")["samples"]
PIECE = re.compile(r"</?[^<>\s]*[^<>]*>|\[[A-Z_/]+\]|\w+|\s+|.", re.DOTALL)


def parsers_of(sample: dict[str, Any]) -> tuple[str | None, str | None]:
    return sample.get("tool_parser"), sample.get("reasoning_parser")


ALIKE: dict[tuple[str | None, str | None], list[dict[str, Any]]] = {}
for one in SAMPLES:
    ALIKE.setdefault(parsers_of(one), []).append(one)


def joined(deltas: list[Delta]) -> Any:
    assert all(delta.text or delta.call is not None for delta in deltas), "an empty delta was given out"
    return join(deltas)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample["id"])
def test_in_two_at_every_position_and_character_by_character(sample: dict[str, Any]) -> None:
    known, options, text = sample_formats(sample), sample_options(sample), sample["text"]
    whole = joined(deltas_of([text], known, **options))
    assert joined(deltas_of(list(text), known, **options)) == whole
    for position in range(len(text) + 1):
        assert joined(deltas_of([text[:position], text[position:]], known, **options)) == whole, position


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample["id"])
def test_with_the_markers_as_tokens_the_reply_is_the_same(sample: dict[str, Any]) -> None:
    known, options = sample_formats(sample), sample_options(sample)
    marked = all_marks().marked(sample["text"])
    whole = reply_of(sample["text"], known, **options)
    assert joined(deltas_of([marked], known, marks=all_marks(), **options)) == whole
    assert joined(deltas_of(list(marked), known, marks=all_marks(), **options)) == whole


@st.composite
def mutated(draw: st.DrawFn) -> tuple[dict[str, Any], str]:
    """A sample whose pieces were dropped, doubled, or mixed with those of its format's other samples."""
    alike = draw(st.sampled_from(list(ALIKE.values())))
    sample = draw(st.sampled_from(alike))
    pieces = PIECE.findall(sample["text"])
    for _ in range(draw(st.integers(0, 5))):
        position = draw(st.integers(0, len(pieces)))
        others = PIECE.findall(draw(st.sampled_from(alike))["text"]) or [""]
        match draw(st.sampled_from(["drop", "add", "replace", "splice"])):
            case "drop":
                del pieces[position : position + 1]
            case "add":
                pieces.insert(position, draw(st.sampled_from(others)))
            case "replace":
                pieces[position : position + 1] = [draw(st.sampled_from(others))]
            case "splice":
                pieces[position:position] = others
    return sample, "".join(pieces)


@settings(deadline=None, max_examples=400)
@given(mutated(), st.lists(st.integers(0, 2000), max_size=8))
def test_of_garbled_text_gives_one_reply_too(case: tuple[dict[str, Any], str], cuts: list[int]) -> None:
    sample, text = case
    known, options = sample_formats(sample), sample_options(sample)
    whole = joined(deltas_of([text], known, **options))
    assert joined(deltas_of(split(text, cuts), known, **options)) == whole
    assert joined(deltas_of(list(text), known, **options)) == whole
    assert all(isinstance(json.loads(call.arguments), dict) for call in whole.calls)


@settings(deadline=None, max_examples=200)
@given(mutated())
def test_without_a_call_every_character_is_still_there(case: tuple[dict[str, Any], str]) -> None:
    sample, text = case
    known = sample_formats(sample)
    if known.tools is None or known.reasoning is not None:
        return  # reasoning loses its markers
    reply = reply_of(text, known, **sample_options(sample))
    if not reply.calls:
        assert reply.content == text


@settings(deadline=None, max_examples=200)
@given(mutated())
def test_without_any_format_text_passes_unchanged(case: tuple[dict[str, Any], str]) -> None:
    _, text = case
    assert reply_of(text, ReplyFormats()).content == text
