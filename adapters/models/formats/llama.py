"""Llama 3 (JSON) and Llama 4 (Python): calls whose end is that of the object, or of the reply.

Llama 3   {"name": "f", "parameters": {...}}      [text]<|python_tag|>{"name": ...};{"name": ...}
Llama 4   [f(k="v", n=2), g()]                    <|python_start|>[f(k="v")]<|python_end|>
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any

from adapters.models.formats.base import Call, CallReader, Piece, ToolFormat
from adapters.models.formats.cursor import Cursor, Incomplete, Malformed
from adapters.models.formats.json_calls import call, calls_of
from adapters.models.formats.schema import Tools
from adapters.models.marks import Marks

_TAG = "<|python_tag|>"
_START, _END = "<|python_start|>", "<|python_end|>"
_BETWEEN = re.compile(r"[\s;,]*")
_NAME = re.compile(r"[^\W\d]\w*")
_WORDS = {"true": True, "false": False, "null": None}


class LlamaJsonReader(CallReader):
    """Reads JSON objects behind the tag. Without the tag the reply has to begin with one, whose `name` comes first
    and is a tool of the request: agents also ask for answers in JSON."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._tag = marks.marked(_TAG)
        self.openers, self.starts = (self._tag,), "{"

    def parse(self, cursor: Cursor, tools: Tools) -> list[Piece]:
        tagged = cursor.text.startswith(self._tag, cursor.at)
        if tagged:
            cursor.take(self._tag)
        cursor.space()
        pieces: list[Piece] = list(self._read(cursor, tools, tagged))
        while True:
            end = cursor.at
            cursor.skip(_BETWEEN)
            try:
                pieces += self._read(cursor, tools, tagged)
            except Malformed:
                cursor.at = end
                return pieces

    def _read(self, cursor: Cursor, tools: Tools, tagged: bool) -> list[Call]:
        if not tagged:
            start = cursor.at
            cursor.take("{")
            cursor.space()
            cursor.take('"name"')
            cursor.at = start
        found = calls_of(self._marks.spelled(cursor.json()))
        if not tagged and not all(one.name in tools for one in found):
            raise Malformed
        return found


class PythonicReader(CallReader):
    """Reads a Python list of calls that is the whole reply."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._start, self._end = marks.marked(_START), marks.marked(_END)
        self.openers, self.starts = (self._start,), "["

    def parse(self, cursor: Cursor, tools: Tools) -> list[Piece]:
        if cursor.text.startswith(self._start, cursor.at):
            cursor.take(self._start)
        cursor.space()
        begin = cursor.at
        cursor.take("[")
        cursor.space()
        cursor.word(_NAME)
        cursor.space()
        cursor.take("(")
        if not cursor.ended:
            raise Incomplete
        text, cursor.at = cursor.text[begin:], len(cursor.text)
        return list(_python_calls(self._marks.spelled(text.strip().removesuffix(self._end))))


def _python_calls(text: str) -> list[Call]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes in the model's text
            listed = ast.parse(text.strip(), mode="eval").body
        if not isinstance(listed, ast.List):
            raise Malformed
        return [_python_call(node) for node in listed.elts]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Malformed from error


def _python_call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
        raise Malformed
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise Malformed
        arguments[keyword.arg] = _python_value(keyword.value)
    return call(node.func.id, arguments)


def _python_value(node: ast.expr) -> Any:
    """Strings, numbers, lists and dicts; `true`, `false`, `null` and Python's words for them."""
    match node:
        case ast.Constant(value=str() | int() | float() | None):
            return node.value
        case ast.Name(id="true" | "false" | "null"):
            return _WORDS[node.id]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List():
            return [_python_value(entry) for entry in node.elts]
        case ast.Dict() if all(isinstance(key, ast.Constant) and isinstance(key.value, str) for key in node.keys):
            keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
            return dict(zip(keys, map(_python_value, node.values), strict=True))
    raise Malformed


LLAMA3_JSON = ToolFormat("llama3", (_TAG,), LlamaJsonReader)
PYTHONIC = ToolFormat("pythonic", (_START, _END), PythonicReader)
