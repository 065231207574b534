"""Replies as text, read by a model's parsers: whole, in pieces, with and without control tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from adapters.models.formats import REASONING_FORMATS, TOOL_FORMATS
from adapters.models.marks import Marks
from adapters.models.parsers import Parsers, ReplyFormats
from adapters.models.reply import Delta, Reply, join

DATA = Path(__file__).parent / "sglang_parsers"
UNMARKED = Marks({}, frozenset())
"""A tokenizer without control tokens: every marker is ordinary text."""


def marks_of(*spellings: str, special: Sequence[str] = ()) -> Marks:
    """A tokenizer with these control tokens; ids from 0 on."""
    every = [*spellings, *special]
    return Marks(dict(enumerate(every)), frozenset(range(len(spellings), len(every))))


@cache
def all_marks() -> Marks:
    """A tokenizer in which every marker of every format is one token, none of them special."""
    spellings = {marker for known in TOOL_FORMATS.values() for marker in known.markers}
    spellings |= {one for known in REASONING_FORMATS.values() for one in (known.opener, known.closer) if one}
    spellings -= {"<|channel>thought"}
    return marks_of(*sorted(spellings | {"<|channel>"}))


@cache
def data(name: str) -> Any:
    """A file of `sglang_parsers/`."""
    return json.loads((DATA / name).read_text(encoding="utf-8"))


def formats(tools: str | None = None, reasoning: str | None = None) -> ReplyFormats:
    """Formats by name."""
    return ReplyFormats(
        TOOL_FORMATS[tools] if tools is not None else None,
        REASONING_FORMATS[reasoning] if reasoning is not None else None,
    )


def deltas_of(
    pieces: Sequence[str],
    known: ReplyFormats,
    *,
    marks: Marks = UNMARKED,
    tools: Sequence[dict[str, Any]] | None = (),
    reasoning_open: bool = False,
) -> list[Delta]:
    """What `pieces` give; `tools` None: none are wanted."""
    tail = known.reasoning.opener if reasoning_open and known.reasoning is not None else ""
    parser = Parsers(marks, known).parser(tail, tools is not None, tools or (), lambda n: f"call_{n}")
    return [delta for piece in pieces for delta in parser.feed(piece)] + parser.finish()


def reply_of(text: str, known: ReplyFormats, **options: Any) -> Reply:
    """The reply to `text` in one piece, in which every spelling of a control token is that token."""
    marks = options.get("marks", UNMARKED)
    return join(deltas_of([marks.marked(text)], known, **options))


def split(text: str, positions: Sequence[int]) -> list[str]:
    """`text` cut at positions (modulo its length)."""
    edges = [0, *sorted(position % (len(text) + 1) for position in positions), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


def tool(name: str, **properties: Any) -> dict[str, Any]:
    """A tool whose parameters have these schemas."""
    return {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}


def sample_options(sample: dict[str, Any]) -> dict[str, Any]:
    """How a sample of `samples.json` is read."""
    tools = data("samples.json")["toolsets"][sample["tools"]]
    return {"tools": tools or None, "reasoning_open": sample.get("reasoning_open", False)}


def sample_formats(sample: dict[str, Any]) -> ReplyFormats:
    """The formats that a sample's SGLang parsers mean here."""
    return formats(sample.get("tool_parser"), sample.get("reasoning_parser"))
