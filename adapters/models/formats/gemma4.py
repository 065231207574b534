"""Gemma 4: a notation of its own, in which strings stand between two `<|"|>` and keys are bare.

    <|tool_call>call:f{k:<|"|>v<|"|>,n:2,flag:true,list:[1,2],object:{k:null}}<tool_call|>

Nothing is escaped: a string ends at the next `<|"|>` and may hold anything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from adapters.models.formats.base import CallReader, Piece, ToolFormat
from adapters.models.formats.cursor import NAME, Cursor, Malformed
from adapters.models.formats.json_calls import call, decode
from adapters.models.formats.schema import Tools
from adapters.models.marks import Marks

_MARKERS = ("<|tool_call>", "<tool_call|>", '<|"|>')
_KEY = re.compile(r"""[^\s{}\[\]<>,:"'\U00100000-\U0010ffff]+""")
_BARE = re.compile(r"[\w.+\-]+")
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_DEEPEST = 100


class Gemma4Reader(CallReader):
    """Reads one call per block."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._open, self._close, self._quote = map(marks.marked, _MARKERS)
        self.openers, self.wake = (self._open,), (self._close,)

    def parse(self, cursor: Cursor, tools: Tools) -> list[Piece]:
        cursor.take(self._open)
        cursor.space()
        cursor.take("call:")
        cursor.space()
        name = cursor.word(NAME)
        cursor.space()
        arguments = self._object(cursor, 0)
        cursor.space()
        cursor.take(self._close)
        return [call(name, arguments)]

    def _value(self, cursor: Cursor, depth: int) -> Any:
        if depth > _DEEPEST:
            raise Malformed
        if cursor.sees(self._quote):
            cursor.take(self._quote)
            return self._marks.spelled(cursor.until(self._quote))
        if cursor.sees("{"):
            return self._object(cursor, depth)
        if cursor.sees("["):
            return self._list(cursor, depth)
        word = cursor.word(_BARE)
        return _WORDS[word] if word in _WORDS else decode(word)

    def _object(self, cursor: Cursor, depth: int) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for _ in self._entries(cursor, "{", "}"):
            key = cursor.word(_KEY)
            cursor.space()
            cursor.take(":")
            cursor.space()
            entries[key] = self._value(cursor, depth + 1)
        return entries

    def _list(self, cursor: Cursor, depth: int) -> list[Any]:
        return [self._value(cursor, depth + 1) for _ in self._entries(cursor, "[", "]")]

    @staticmethod
    def _entries(cursor: Cursor, begin: str, end: str) -> Iterator[None]:
        """Stops at each entry between `begin` and `end`; the loop's body reads it."""
        cursor.take(begin)
        cursor.space()
        while not cursor.sees(end):
            yield
            cursor.space()
            if not cursor.sees(end):
                cursor.take(",")
                cursor.space()
        cursor.take(end)


GEMMA4 = ToolFormat("gemma4", _MARKERS, Gemma4Reader)
