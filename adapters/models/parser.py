"""One incremental parser for replies, streamed or not: joined deltas equal the whole, whatever the chunking.

Text arrives with control tokens as marks (`marks.py`). Calls are held until they are complete, since only then
is it known that they are calls; white space is held until it is known what follows it. No I/O, one per reply.

What is no complete, well-formed call is content, as the model wrote it: an opener at which no call stands is text
like any other, and the search goes on right behind it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from adapters.models.formats.base import NO_CALL, Block, Call, CallReader, ReasoningFormat
from adapters.models.formats.schema import Tools
from adapters.models.marks import Marks
from adapters.models.reply import Delta, ToolCall

_SHORT = 256
"""Characters up to which a block is read again with every piece: most openers in prose are told by then."""
_MOST_FAILURES = 32
"""Openers without a call after which a reply's openers are text. A model stuck on one writes thousands, and each
could be read to the end of the reply."""
_SPACE = re.compile(r"\s*")


class Parser(Protocol):
    """What reads a reply."""

    def feed(self, text: str) -> list[Delta]:
        """What is certain after `text`."""

    def finish(self) -> list[Delta]:
        """The rest."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a model's replies are read by; `shown` are the marks that are shown even if special."""

    marks: Marks
    calls: CallReader | None
    reasoning: ReasoningFormat | None
    shown: frozenset[str] = frozenset()


class ReplyParser:
    """`reasoning_open`: the prompt already printed the reasoning opener. `new_id(n)` names the n-th call."""

    def __init__(
        self, grammar: Grammar, tools: Tools, *, reasoning_open: bool, new_id: Callable[[int], str]
    ) -> None:
        marked, reasoning = grammar.marks.marked, grammar.reasoning
        self._grammar = grammar
        self._reader = grammar.calls
        self._openers = grammar.calls.openers if grammar.calls is not None else ()
        self._think_open = marked(reasoning.opener) if reasoning is not None else ""
        self._think_close = marked(reasoning.closer) if reasoning is not None else ""
        self._begins = frozenset(one[0] for one in (self._think_close, *self._openers) if one)
        self._tools = tools
        self._new_id = new_id
        self._step = self._opened if reasoning_open and reasoning is not None else self._start
        self._text = ""
        self._at = 0  # where in the text the next step begins
        self._looked = 0  # characters of the block's text that were looked at
        self._failures = 0
        self._space = ""  # white space not yet shown: dropped before a call or a closing marker
        self._drop = ""  # characters dropped at the beginning of what is shown next
        self._calls = 0
        self._content_begun = False
        self._after_call = False  # nothing but white space was written since the last call
        self._deltas: list[Delta] = []

    def feed(self, text: str) -> list[Delta]:
        """What is certain after `text`."""
        if self._at == len(self._text) and len(text) < _SHORT and self._begins.isdisjoint(text):
            kind = self._flowing()
            if kind is not None:  # as for nearly all tokens: no marker can begin here
                self._show_text(kind, text)
                return self._given()
        self._text = self._text[self._at :] + text
        self._at = 0
        return self._run(ended=False)

    def _flowing(self) -> Literal["reasoning", "content"] | None:
        """What text without any marker is now."""
        if self._step == self._content:
            return "content"
        return "reasoning" if self._step == self._reasoning else None

    def finish(self) -> list[Delta]:
        """The rest. A call without its closing marker is no call: its raw text is content."""
        deltas = self._run(ended=True)
        if self._step == self._content and self._space and not self._after_call:
            deltas.append(Delta("content", self._display(self._space)))
        self._text = self._space = ""
        self._at = 0
        return deltas

    def _run(self, *, ended: bool) -> list[Delta]:
        while self._step(ended):
            pass
        return self._given()

    def _given(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas

    # Steps: each handles text up to the next marker and gives False when more text is needed.

    def _start(self, ended: bool) -> bool:
        """Reasoning opens only at the start of a reply, before anything but white space."""
        if self._think_open:
            begin = self._first_visible()
            if self._text.startswith(self._think_open, begin):
                self._at = begin
                self._step = self._opened
                return True
            if not ended and self._think_open.startswith(self._text[begin:]):
                return False
        self._step = self._first
        return True

    def _opened(self, ended: bool) -> bool:
        """Openers at the start of the reasoning are not its text: some models repeat the one of the prompt."""
        begin = self._first_visible()
        if self._text.startswith(self._think_open, begin):
            self._at = begin + len(self._think_open)
            return True
        if not ended and self._think_open.startswith(self._text[begin:]):
            return False
        self._drop = "\n"
        self._step = self._reasoning
        return True

    def _reasoning(self, ended: bool) -> bool:
        position, marker = self._find(self._think_close, *self._openers)
        if marker and marker != self._think_close:
            return self._call_in_reasoning(position, marker, ended)
        self._show("reasoning", position if marker else self._ready(ended, self._think_close, *self._openers))
        if marker:
            self._close_reasoning()
            self._at = position + len(marker)
        return bool(marker)

    def _call_in_reasoning(self, position: int, opener: str, ended: bool) -> bool:
        """A call in reasoning that is closed later is its text; in reasoning that never is, it ends it."""
        self._show("reasoning", position)
        if self._text.find(self._think_close, position) >= 0 or self._read_block(ended) is NO_CALL:
            self._pass_over("reasoning", opener)
            return True
        if ended:
            self._close_reasoning()
        return ended

    def _close_reasoning(self) -> None:
        self._space, self._drop, self._looked, self._step = "", "\n", 0, self._first

    def _first(self, ended: bool) -> bool:
        """The content begins: some formats have calls without an opener, there alone."""
        starts = self._reader.starts if self._reader is not None else ""
        begin = self._first_visible()
        if starts and begin == len(self._text) and not ended:
            return False
        self._step = self._content
        if starts and self._text[begin : begin + 1] and self._text[begin] in starts:
            space, self._at = self._text[self._at : begin], begin
            self._step = self._block
            self._space = space.lstrip(self._drop)
        return True

    def _content(self, ended: bool) -> bool:
        position, marker = self._find(*self._openers)
        self._show("content", position if marker else self._ready(ended, *self._openers))
        if marker:
            self._step = self._block
        return bool(marker)

    def _block(self, ended: bool) -> bool:
        block = self._read_block(ended)
        if block is None:
            return False
        self._step = self._content
        if block is NO_CALL:
            opener = next((one for one in self._openers if self._text.startswith(one, self._at)), "")
            self._pass_over("content", opener)
            return True
        self._looked = 0
        for piece in block.pieces:
            if isinstance(piece, Call):
                self._give_call(piece)
            else:
                self._show_text("content", piece)
        self._at = block.end
        return True

    def _read_block(self, ended: bool) -> Block | None:
        """The block at `_at`; a long one is read only when that can have become worth it."""
        assert self._reader is not None
        length = len(self._text) - self._at
        news = self._at + self._looked
        self._looked = length
        if not ended and length > _SHORT:
            wake = self._reader.wake
            if not any(self._text.find(one, max(self._at, news - len(one) + 1)) >= 0 for one in wake):
                return None
        return self._reader.read(self._text, self._at, self._tools, ended)

    def _pass_over(self, kind: Literal["reasoning", "content"], opener: str) -> None:
        """No call stands at this opener: it is text."""
        self._show(kind, self._at + len(opener))
        self._looked = 0
        self._failures += 1
        if self._failures >= _MOST_FAILURES:
            self._openers = ()

    # What is given out.

    def _give_call(self, call: Call) -> None:
        own_id = call.id if call.id is not None else self._new_id(self._calls)
        self._deltas.append(Delta("tool_call", call=ToolCall(own_id, call.name, call.arguments)))
        self._calls += 1
        self._space, self._after_call = "", True

    def _show(self, kind: Literal["reasoning", "content"], end: int) -> None:
        """Emit the text up to `end`."""
        text, self._at = self._text[self._at : end], end
        self._show_text(kind, text)

    def _show_text(self, kind: Literal["reasoning", "content"], text: str) -> None:
        """Emit `text` but for its trailing white space, which waits for what follows."""
        if self._after_call and not self._content_begun:
            text = text.lstrip()
        text = text.lstrip(self._drop) if self._drop else text
        if not text:
            return
        self._drop = ""
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        self._content_begun |= kind == "content" and bool(shown)
        visible = self._display(shown)
        if visible:
            self._deltas.append(Delta(kind, visible))
            self._after_call = False

    def _display(self, text: str) -> str:
        return self._grammar.marks.display(text, self._grammar.shown)

    # What is found.

    def _first_visible(self) -> int:
        match = _SPACE.match(self._text, self._at)
        return match.end() if match else self._at

    def _find(self, *markers: str) -> tuple[int, str]:
        """The first of `markers` and where it begins; an empty one if there is none."""
        found = [(position, one) for one in markers if (position := self._text.find(one, self._at)) >= 0]
        return min(found, default=(len(self._text), ""))

    def _ready(self, ended: bool, *markers: str) -> int:
        """Where the longest end of the text begins that may be the beginning of a marker."""
        if ended:
            return len(self._text)
        return len(self._text) - max((_overlap(self._text, self._at, one) for one in markers), default=0)


def _overlap(text: str, at: int, marker: str) -> int:
    for length in range(min(len(text) - at, len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
