"""Calls as JSON between two markers: Hermes, Qwen2.5 and Qwen3 one per block, Nemotron Nano 2 a list in one block.

    <tool_call>\\n{"name": "f", "arguments": {...}}\\n</tool_call>
    <TOOLCALL>[{"name": "f", "arguments": {...}}, ...]</TOOLCALL>

White space around the JSON is free. A closer inside a string does no harm.
"""

from __future__ import annotations

from functools import partial

from adapters.models.formats.base import CallReader, Piece, ToolFormat
from adapters.models.formats.cursor import Cursor
from adapters.models.formats.json_calls import calls_of
from adapters.models.formats.schema import Tools
from adapters.models.marks import Marks


class JsonBlockReader(CallReader):
    """Reads `opener JSON closer`."""

    def __init__(self, marks: Marks, *, opener: str, closer: str) -> None:
        self._marks = marks
        self._opener, self._closer = marks.marked(opener), marks.marked(closer)
        self.openers, self.wake = (self._opener,), (self._closer,)

    def parse(self, cursor: Cursor, tools: Tools) -> list[Piece]:
        cursor.take(self._opener)
        cursor.space()
        body = cursor.json()
        cursor.space()
        cursor.take(self._closer)
        return list(calls_of(self._marks.spelled(body)))


def json_block(name: str, opener: str, closer: str) -> ToolFormat:
    """A format whose blocks are JSON between `opener` and `closer`."""
    return ToolFormat(name, (opener, closer), partial(JsonBlockReader, opener=opener, closer=closer))


HERMES = json_block("hermes", "<tool_call>", "</tool_call>")
NEMOTRON_V2 = json_block("nemotron_v2", "<TOOLCALL>", "</TOOLCALL>")
