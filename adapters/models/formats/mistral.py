"""Mistral: one marker, then a JSON list, or a name and its arguments.

    v1 to v7   [TOOL_CALLS] [{"name": "f", "arguments": {...}, "id": "abcdef123"}, ...]
    v11        [TOOL_CALLS]f[CALL_ID]abcdef123[ARGS]{...}[TOOL_CALLS]g[CALL_ID]...
    v13        [TOOL_CALLS]f[ARGS]{...}[TOOL_CALLS]g[ARGS]{...}

A call ends where its JSON does. The templates want ids of nine letters and digits, so ids made here are such.
"""

from __future__ import annotations

from hashlib import sha256

from adapters.models.formats.base import CallReader, Piece, ToolFormat
from adapters.models.formats.cursor import NAME, Cursor
from adapters.models.formats.json_calls import call_with, calls_of
from adapters.models.formats.schema import Tools
from adapters.models.marks import Marks

_MARKERS = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")
_ID_LENGTH = 9


class MistralReader(CallReader):
    """Reads all three spellings."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._open, self._id, self._arguments = map(marks.marked, _MARKERS)
        self.openers = (self._open,)

    def parse(self, cursor: Cursor, tools: Tools) -> list[Piece]:
        cursor.take(self._open)
        cursor.space()
        if cursor.sees("[") or cursor.sees("{"):
            return list(calls_of(self._marks.spelled(cursor.json()), with_ids=True))
        name = cursor.word(NAME)
        cursor.space()
        own_id = None
        if cursor.sees(self._id):
            cursor.take(self._id)
            own_id = cursor.word(NAME)
            cursor.space()
        cursor.take(self._arguments)
        cursor.space()
        return [call_with(name, self._marks.spelled(cursor.json()), own_id)]


def short_id(fresh: str) -> str:
    """Nine letters and digits that stand for `fresh`."""
    return sha256(fresh.encode()).hexdigest()[:_ID_LENGTH]


MISTRAL = ToolFormat("mistral", _MARKERS, MistralReader, make_id=short_id)
