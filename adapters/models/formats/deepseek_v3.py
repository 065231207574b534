"""DeepSeek V3, R1 and V3.1: a section of calls, each with a name and JSON.

    <｜tool▁calls▁begin｜>CALLS<｜tool▁calls▁end｜>
    V3, R1   <｜tool▁call▁begin｜>function<｜tool▁sep｜>f\\n```json\\n{...}\\n```<｜tool▁call▁end｜>
    V3.1     <｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜>

The fence tells the versions apart, so one reader serves both.
"""

from __future__ import annotations

from adapters.models.formats.base import Call, CallReader, Piece, ToolFormat
from adapters.models.formats.cursor import NAME, Cursor
from adapters.models.formats.json_calls import call_with
from adapters.models.formats.schema import Tools
from adapters.models.formats.section import section
from adapters.models.marks import Marks

_MARKERS = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
)
_FENCE = "```"


class DeepSeekV3Reader(CallReader):
    """Reads sections of calls."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._open, self._close, self._begin, self._end, self._separator = map(marks.marked, _MARKERS)
        self.openers, self.wake = (self._open,), (self._close,)

    def parse(self, cursor: Cursor, tools: Tools) -> list[Piece]:
        cursor.take(self._open)
        return section(cursor, self._begin, self._close, self._read_call)

    def _read_call(self, cursor: Cursor) -> Call:
        cursor.take(self._begin)
        name = cursor.word(NAME)
        cursor.take(self._separator)
        cursor.space()
        if cursor.sees("{"):
            arguments = cursor.json()
        else:  # the word before the separator was a type, always "function"
            name = cursor.word(NAME)
            cursor.space()
            cursor.take(_FENCE, "json")
            cursor.space()
            arguments = cursor.json()
            cursor.space()
            cursor.take(_FENCE)
        cursor.space()
        cursor.take(self._end)
        return call_with(name, self._marks.spelled(arguments))


DEEPSEEK_V3 = ToolFormat("deepseekv3", _MARKERS, DeepSeekV3Reader)
