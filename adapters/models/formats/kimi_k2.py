"""Kimi K2: a section of calls, each with an id that names the function, and JSON.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}<|tool_call_end|>
    <|tool_calls_section_end|>

The template prints a call's id with its result, so the id the model wrote is the call's id.
"""

from __future__ import annotations

import re

from adapters.models.formats.base import Call, CallReader, Piece, ToolFormat
from adapters.models.formats.cursor import NAME, Cursor, Malformed
from adapters.models.formats.json_calls import call_with
from adapters.models.formats.schema import Tools
from adapters.models.formats.section import section
from adapters.models.marks import Marks

_MARKERS = (
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
_ID = re.compile(r"(?:functions\.)?([\w.\-]+):\d+")


class KimiK2Reader(CallReader):
    """Reads sections of calls."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._open, self._close, self._begin, self._arguments, self._end = map(marks.marked, _MARKERS)
        self.openers, self.wake = (self._open,), (self._close,)

    def parse(self, cursor: Cursor, tools: Tools) -> list[Piece]:
        cursor.take(self._open)
        return section(cursor, self._begin, self._close, self._read_call)

    def _read_call(self, cursor: Cursor) -> Call:
        cursor.take(self._begin)
        cursor.space()
        own_id = cursor.word(NAME)
        named = _ID.fullmatch(own_id)
        if named is None:
            raise Malformed
        cursor.space()
        cursor.take(self._arguments)
        cursor.space()
        arguments = cursor.json()
        cursor.space()
        cursor.take(self._end)
        return call_with(named[1], self._marks.spelled(arguments), own_id)


KIMI_K2 = ToolFormat("kimi_k2", _MARKERS, KimiK2Reader)
