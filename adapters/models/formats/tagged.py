"""Calls as tags, one per argument: Qwen3-Coder (also Qwen3.5 and Nemotron 3), MiniMax M2, DeepSeek V3.2 and V4.

    Qwen      <tool_call>\\n<function=f>\\n<parameter=k>\\nvalue\\n</parameter>\\n</function>\\n</tool_call>
    MiniMax   <minimax:tool_call>\\n<invoke name="f">\\n<parameter name="k">value</parameter>\\n</invoke>...
    DeepSeek  <｜DSML｜tool_calls>\\n<｜DSML｜invoke name="f">\\n<｜DSML｜parameter name="k" string="true">v</...

Nothing is escaped. A value therefore ends at the closer behind which the next tag of the call stands, and one that
holds another argument's opener has lost its own closer: no call, rather than a wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from adapters.models.formats.base import Call, CallReader, Piece, ToolFormat
from adapters.models.formats.cursor import NAME, Cursor, Malformed
from adapters.models.formats.json_calls import call, call_with
from adapters.models.formats.schema import Tools, json_or_text, typed
from adapters.models.formats.section import section
from adapters.models.marks import Marks

_STRING_FLAG = re.compile(r"""\s*string="(true|false)"\s*""")


@dataclass(frozen=True, slots=True)
class Tags:
    """The spellings of a format. `call` and `argument` are what stands before and behind the name of each; with
    `attributes` more may follow up to `>`. `blocks` are openers and closers. `value` makes an argument's value of
    its text, its attributes and the schema's types."""

    blocks: tuple[tuple[str, str], ...]
    call: tuple[str, str]
    call_close: str
    argument: tuple[str, str]
    argument_close: str
    value: Callable[[str, str, frozenset[str]], Any]
    attributes: bool = True
    block_is_call: bool = False
    """Each call has a block of its own, so the block's closer is the call's."""
    bare_calls: bool = False
    """A call without a block is one too."""
    json_bodies: bool = False
    """A call's arguments may be one JSON object."""


class TaggedReader(CallReader):
    """Reads blocks of tagged calls."""

    def __init__(self, marks: Marks, *, tags: Tags) -> None:
        mark = marks.marked
        self._marks = marks
        self._tags = tags
        self._blocks = {mark(opener): mark(closer) for opener, closer in tags.blocks}
        self._call, self._call_close = mark(tags.call[0]), mark(tags.call_close)
        self._argument, self._argument_close = mark(tags.argument[0]), mark(tags.argument_close)
        self.openers = (*self._blocks, *((self._call,) if tags.bare_calls else ()))
        self.wake = (*self._blocks.values(), *((self._call_close, "/>") if tags.bare_calls else ()))

    def parse(self, cursor: Cursor, tools: Tools) -> list[Piece]:
        opener = next(opener for opener in self.openers if cursor.text.startswith(opener, cursor.at))
        read = partial(self._read_call, tools=tools)
        if opener not in self._blocks:
            return [read(cursor)]
        cursor.take(opener)
        return section(cursor, self._call, self._blocks[opener], read, strict=self._tags.block_is_call)

    def _read_call(self, cursor: Cursor, tools: Tools) -> Call:
        cursor.take(self._call)
        name, rest = self._head(cursor, self._tags.call[1])
        if NAME.fullmatch(name) is None:
            raise Malformed
        if rest.strip() == "/":
            return call(name, {})
        if rest.strip():
            raise Malformed
        cursor.space()
        if self._tags.json_bodies and cursor.sees("{"):
            body = cursor.json()
            cursor.space()
            cursor.take(self._call_close)
            return call_with(name, self._marks.spelled(body))
        arguments: dict[str, Any] = {}
        while not cursor.sees(self._call_close):
            cursor.take(self._argument)
            key, rest = self._head(cursor, self._tags.argument[1])
            arguments[key] = self._tags.value(self._value(cursor), rest, tools.kinds(name, key))
            cursor.space()
        cursor.take(self._call_close)
        return call(name, arguments)

    def _head(self, cursor: Cursor, end: str) -> tuple[str, str]:
        """The name in a tag, and what follows it up to `>`."""
        name = self._marks.spelled(cursor.until(end)).strip()
        return name, cursor.until(">") if self._tags.attributes else ""

    def _value(self, cursor: Cursor) -> str:
        start = cursor.at
        while True:
            cursor.until(self._argument_close)
            end = cursor.at - len(self._argument_close)
            behind = cursor.at
            cursor.space()
            if cursor.sees(self._argument) or cursor.sees(self._call_close):
                break
            cursor.at = behind
        value = cursor.text[start:end]
        if self._argument in value:
            raise Malformed
        return self._marks.spelled(value)


def _qwen_value(text: str, attributes: str, kinds: frozenset[str]) -> Any:
    return typed(text.removeprefix("\n").removesuffix("\n"), kinds, loose=False)


def _minimax_value(text: str, attributes: str, kinds: frozenset[str]) -> Any:
    if attributes.strip():
        raise Malformed
    return typed(text, kinds, loose=False)


def _dsml_value(text: str, attributes: str, kinds: frozenset[str]) -> Any:
    """The model says itself whether it means a string."""
    flag = _STRING_FLAG.fullmatch(attributes)
    if flag is None:
        raise Malformed
    return text if flag[1] == "true" else json_or_text(text)


def _tagged(name: str, tags: Tags, *markers: str) -> ToolFormat:
    return ToolFormat(name, markers, partial(TaggedReader, tags=tags))


def _dsml(name: str, space: str, *blocks: str) -> ToolFormat:
    open_, close = f"<｜DSML｜{space}", f"</｜DSML｜{space}"
    tags = Tags(
        blocks=tuple((f"{open_}{block}>", f"{close}{block}>") for block in blocks),
        call=(f'{open_}invoke name="', '"'),
        call_close=f"{close}invoke>",
        argument=(f'{open_}parameter name="', '"'),
        argument_close=f"{close}parameter>",
        value=_dsml_value,
        bare_calls=True,
        json_bodies=True,
    )
    return _tagged(name, tags, "｜DSML｜")


QWEN3_CODER = _tagged(
    "qwen3_coder",
    Tags(
        blocks=(("<tool_call>", "</tool_call>"),),
        call=("<function=", ">"),
        call_close="</function>",
        argument=("<parameter=", ">"),
        argument_close="</parameter>",
        value=_qwen_value,
        attributes=False,
        block_is_call=True,
    ),
    "<tool_call>",
    "</tool_call>",
)
MINIMAX_M2 = _tagged(
    "minimax-m2",
    Tags(
        blocks=(("<minimax:tool_call>", "</minimax:tool_call>"),),
        call=('<invoke name="', '"'),
        call_close="</invoke>",
        argument=('<parameter name="', '"'),
        argument_close="</parameter>",
        value=_minimax_value,
    ),
    "<minimax:tool_call>",
    "</minimax:tool_call>",
)
DEEPSEEK_V32 = _dsml("deepseekv32", "", "function_calls", "tool_calls")
DEEPSEEK_V4 = _dsml("deepseekv4", "", "tool_calls", "function_calls")
DEEPSEEK_V41 = _dsml("deepseekv41", " ", "calls")
