"""One incremental parser for replies, streamed or not: joined deltas equal the whole, whatever the chunking.

Text arrives with control tokens as marks (`marks.py`). Calls are held until they are complete, since only then
is it known that they are calls; white space is held until it is known what follows it. No I/O, one per reply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from adapters.models.formats import ReasoningFormat, ToolFormat
from adapters.models.marks import Marks
from adapters.models.reply import Delta, ToolCall

_State = Literal["start", "reasoning", "content", "call"]


class ReplyParser:
    """`reasoning_open`: the prompt already printed the reasoning opener. `new_id(n)` names the n-th call."""

    def __init__(
        self,
        marks: Marks,
        tools: ToolFormat | None,
        reasoning: ReasoningFormat | None,
        *,
        reasoning_open: bool,
        new_id: Callable[[int], str],
    ) -> None:
        self._marks = marks
        self._tools = tools
        self._think_open = marks.of_spelling(reasoning.opener) if reasoning else None
        self._think_close = marks.of_spelling(reasoning.closer) if reasoning else ""
        self._call_open = marks.of_spelling(tools.opener) if tools else None
        self._call_close = marks.of_spelling(tools.closer) if tools else ""
        self._new_id = new_id
        self._state: _State = "reasoning" if reasoning_open and reasoning else "start"
        self._pending = ""
        self._space = ""  # white space not yet shown: dropped before a call or a closing marker
        self._strip_start = True  # reasoning loses its leading newlines, and so does content after reasoning
        self._calls = 0
        self._after_call = False  # nothing but white space was written since the last call

    def feed(self, text: str) -> list[Delta]:
        """What is certain after `text`."""
        self._pending += text
        deltas: list[Delta] = []
        while self._step(deltas):
            pass
        return deltas

    def finish(self) -> list[Delta]:
        """The rest. A call without its closing marker is no call: its raw text is content."""
        deltas: list[Delta] = []
        if self._state == "start":
            self._strip_start = False
        elif self._state == "call":
            self._pending = f"{self._call_open}{self._pending}"
        kind: Literal["reasoning", "content"] = "reasoning" if self._state == "reasoning" else "content"
        self._show(kind, self._pending, deltas)
        if self._space and kind == "content" and not self._after_call:
            deltas.append(Delta("content", self._marks.display(self._space)))
        self._pending = self._space = ""
        return deltas

    def _step(self, deltas: list[Delta]) -> bool:
        """Handle pending text up to the next marker; False when more text is needed."""
        if self._state == "start":
            return self._step_start()
        if self._state == "reasoning":
            return self._step_reasoning(deltas)
        if self._state == "content":
            return self._step_content(deltas)
        return self._step_call(deltas)

    def _step_start(self) -> bool:
        """Reasoning opens only at the start of a reply, before anything but white space."""
        opener, text = self._think_open, self._pending.lstrip()
        if opener is not None:
            if text.startswith(opener):
                self._pending = text[len(opener) :]
                self._state = "reasoning"
                return True
            if opener.startswith(text):
                return False
        elif not self._pending:
            return False
        self._strip_start = False
        self._state = "content"
        return True

    def _step_reasoning(self, deltas: list[Delta]) -> bool:
        before, found, after = self._pending.partition(self._think_close)
        if found:
            self._show("reasoning", before, deltas)
            self._space, self._pending = "", after
            self._strip_start, self._state = True, "content"
            return True
        ready = len(before) - _overlap(before, self._think_close)
        self._show("reasoning", before[:ready], deltas)
        self._pending = before[ready:]
        return False

    def _step_content(self, deltas: list[Delta]) -> bool:
        if self._call_open is None:
            self._show("content", self._pending, deltas)
            self._pending = ""
            return False
        before, found, after = self._pending.partition(self._call_open)
        if found:
            self._show("content", before, deltas)
            self._pending, self._state = after, "call"
            return True
        ready = len(before) - _overlap(before, self._call_open)
        self._show("content", before[:ready], deltas)
        self._pending = before[ready:]
        return False

    def _step_call(self, deltas: list[Delta]) -> bool:
        body, found, after = self._pending.partition(self._call_close)
        if not found:
            return False
        assert self._tools is not None
        parsed = self._tools.parse(self._marks.display(body))
        self._pending, self._state = after, "content"
        if parsed is None:
            self._show("content", f"{self._call_open}{body}{self._call_close}", deltas)
            return True
        name, arguments = parsed
        deltas.append(Delta("tool_call", call=ToolCall(self._new_id(self._calls), name, arguments)))
        self._calls += 1
        self._space, self._after_call = "", True
        return True

    def _show(self, kind: Literal["reasoning", "content"], text: str, deltas: list[Delta]) -> None:
        """Emit `text` but for its trailing white space, which waits for what follows."""
        if self._strip_start:
            text = text.lstrip("\n")
        if not text:
            return
        self._strip_start = False
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        visible = self._marks.display(shown)
        if visible:
            deltas.append(Delta(kind, visible))
            self._after_call = False


def _overlap(text: str, marker: str) -> int:
    """Length of the longest end of `text` that may be the beginning of `marker`."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if marker.startswith(text[-length:]):
            return length
    return 0
