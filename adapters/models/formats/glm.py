"""GLM 4.5 to 5: the name, then keys and values, each between markers of its own.

    4.5, 4.6   <tool_call>f\\n<arg_key>k</arg_key>\\n<arg_value>v</arg_value>\\n</tool_call>
    4.7, 5     <tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>

White space between the parts is free, so one reader serves all. Values are verbatim and typed by the schema.
"""

from __future__ import annotations

from typing import Any

from adapters.models.formats.base import CallReader, Piece, ToolFormat
from adapters.models.formats.cursor import NAME, Cursor, Malformed
from adapters.models.formats.json_calls import call
from adapters.models.formats.schema import Tools, typed
from adapters.models.marks import Marks

_MARKERS = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")


class GlmReader(CallReader):
    """Reads one call per block."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._open, self._close, *parts = map(marks.marked, _MARKERS)
        self._key, self._key_close, self._value, self._value_close = parts
        self.openers, self.wake = (self._open,), (self._close,)

    def parse(self, cursor: Cursor, tools: Tools) -> list[Piece]:
        cursor.take(self._open)
        cursor.space()
        name = cursor.word(NAME)
        cursor.space()
        arguments: dict[str, Any] = {}
        while not cursor.sees(self._close):
            cursor.take(self._key)
            key = self._marks.spelled(cursor.until(self._key_close)).strip()
            cursor.space()
            cursor.take(self._value)
            arguments[key] = typed(self._read_value(cursor), tools.kinds(name, key), loose=True)
        cursor.take(self._close)
        return [call(name, arguments)]

    def _read_value(self, cursor: Cursor) -> str:
        """Up to the closer behind which the call goes on or ends; the cursor is left there."""
        start = cursor.at
        while True:
            cursor.until(self._value_close)
            end = behind = cursor.at
            cursor.space()
            if cursor.sees(self._key) or cursor.sees(self._close):
                break
            cursor.at = behind
        value = cursor.text[start : end - len(self._value_close)]
        if self._key in value:
            raise Malformed  # this value's closer is missing
        return self._marks.spelled(value)


GLM = ToolFormat("glm45", _MARKERS, GlmReader)
