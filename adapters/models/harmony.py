"""Replies of gpt-oss, read as a whole: a sequence of messages, each with a header that says what it is.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>
    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>

The prompt ends with `<|start|>assistant`, so the first header begins without it. A recipient may stand before or
behind the channel, and in any channel. A call needs its `<|call|>`; a message to nobody may be cut. What is neither
a message nor a call is content, as the model wrote it. No I/O, one per reply; the same whatever the chunking.

The library `openai-harmony` fetches its vocabulary from the network, so it is an oracle for tests and no more.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from adapters.models.formats import gpt_oss
from adapters.models.formats.base import Call
from adapters.models.formats.cursor import Cursor, Incomplete, Malformed
from adapters.models.formats.json_calls import call, call_with
from adapters.models.marks import Marks
from adapters.models.reply import Delta, ToolCall

_CHANNEL = re.compile(re.escape(gpt_oss.CHANNEL) + r"\s*(\w+)")
_RECIPIENT = re.compile(r"(?:^|\s)to=([^\s<]+)")
_SPACE = re.compile(r"\s*")
_SHORT = 256
"""Characters up to which a call is read again with every piece."""


class HarmonyParser:
    """`use_tools`: calls are wanted, else they are content. `split`: analysis is reasoning, else it is content."""

    def __init__(self, marks: Marks, *, use_tools: bool, split: bool, new_id: Callable[[int], str]) -> None:
        mark = marks.marked
        self._marks = marks
        self._shown = marks.of_spellings(gpt_oss.GPT_OSS.markers)
        self._use_tools = use_tools
        self._split = split
        self._new_id = new_id
        self._start, self._channel, self._message = map(mark, (gpt_oss.START, gpt_oss.CHANNEL, gpt_oss.MESSAGE))
        self._call = mark(gpt_oss.CALL)
        self._ends = tuple(map(mark, (gpt_oss.END, gpt_oss.RETURN, gpt_oss.CALL)))
        self._step = self._beginning
        self._text = ""
        self._at = 0
        self._looked = 0
        self._kind: Literal["reasoning", "content"] = "content"
        self._recipient = ""
        self._body = 0  # where the body of a call begins, behind its header
        self._calls = 0
        self._deltas: list[Delta] = []

    def feed(self, text: str) -> list[Delta]:
        """What is certain after `text`."""
        self._text = self._text[self._at :] + text
        self._body = max(0, self._body - self._at)
        self._at = 0
        return self._run(ended=False)

    def finish(self) -> list[Delta]:
        """The rest."""
        return self._run(ended=True)

    def _run(self, *, ended: bool) -> list[Delta]:
        while self._step(ended):
            pass
        deltas, self._deltas = self._deltas, []
        return deltas

    # Steps: each gives False when more text is needed.

    def _beginning(self, ended: bool) -> bool:
        """A reply that begins with no header at all is plain text."""
        match = _SPACE.match(self._text, self._at)
        cursor = Cursor(self._text, match.end() if match else self._at, ended)
        try:
            plain = not any(
                cursor.sees(one) for one in ("to=", self._channel, self._message, self._start, *self._ends)
            )
        except Incomplete:
            return False
        self._kind = "content"
        self._step = self._prose if plain else self._header
        return True

    def _header(self, ended: bool) -> bool:
        """From the end of a message to the next `<|message|>`."""
        end = self._text.find(self._message, self._at)
        if end < 0:
            if ended and self._text[self._at :].strip() not in ("", *self._ends):
                self._give("content", len(self._text), raw=True)
            return False
        header = self._marks.spelled(self._text[self._at : end])
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        self._body = end + len(self._message)
        if recipient is not None and recipient[1] != "assistant":
            self._recipient = recipient[1].removeprefix("functions.")
            self._step = self._to_tool
            return True
        self._at = self._body
        analysis = channel is not None and channel[1] == "analysis" and self._split
        self._kind = "reasoning" if analysis else "content"
        self._step = self._prose
        return True

    def _prose(self, ended: bool) -> bool:
        """The body of a message to the reader."""
        end, marker = self._end_of_message(self._at)
        if marker:
            self._give(self._kind, end)
            self._at = end + (0 if marker == self._start else len(marker))
            self._step = self._header
            return True
        self._give(self._kind, len(self._text) if ended else self._before_marker())
        return False

    def _to_tool(self, ended: bool) -> bool:
        """The body of a message to a tool; `_at` is at its header, which is shown if this is no call."""
        length = len(self._text) - self._body
        news, self._looked = self._body + self._looked, length
        unread = max(self._body, news - len(gpt_oss.MESSAGE))
        if not ended and length > _SHORT and not self._end_of_message(unread)[1]:
            return False
        cursor = Cursor(self._text, self._body, ended)
        try:
            found = self._read_call(cursor)
        except Incomplete:
            return False
        except Malformed:
            self._give("content", self._body, raw=True)
            self._looked, self._step = 0, self._raw
            return True
        own_id = self._new_id(self._calls)
        self._deltas.append(Delta("tool_call", call=ToolCall(own_id, found.name, found.arguments)))
        self._calls += 1
        self._at, self._looked, self._step = cursor.at, 0, self._header
        return True

    def _read_call(self, cursor: Cursor) -> Call:
        if not self._use_tools:
            raise Malformed
        cursor.space()
        if cursor.sees(self._call):  # no arguments at all (SGLang 0.5.23 reads them as none)
            cursor.take(self._call)
            return call(self._recipient, {})
        arguments = cursor.json()
        cursor.space()
        cursor.take(self._call)
        return call_with(self._recipient, self._marks.spelled(arguments))

    def _raw(self, ended: bool) -> bool:
        """The body of what is no call, shown with the marker that ends it."""
        end, marker = self._end_of_message(self._at)
        if marker:
            self._give("content", end + (0 if marker == self._start else len(marker)), raw=True)
            self._step = self._header
            return True
        self._give("content", len(self._text) if ended else self._before_marker(), raw=True)
        return False

    # Helpers.

    def _end_of_message(self, at: int) -> tuple[int, str]:
        markers = (*self._ends, self._start)
        found = [(position, one) for one in markers if (position := self._text.find(one, at)) >= 0]
        return min(found, default=(len(self._text), ""))

    def _before_marker(self) -> int:
        """Where the longest end of the text begins that may be the beginning of a marker."""
        for length in range(min(len(self._text) - self._at, len(gpt_oss.CONSTRAIN)), 0, -1):
            if any(one.startswith(self._text[-length:]) for one in (*self._ends, self._start)):
                return len(self._text) - length
        return len(self._text)

    def _give(self, kind: Literal["reasoning", "content"], end: int, *, raw: bool = False) -> None:
        """Emit the text up to `end`; what is no message is shown with its markers."""
        text, self._at = self._text[self._at : end], end
        visible = self._marks.display(text, self._shown if raw else ())
        if visible:
            self._deltas.append(Delta(kind, visible))
