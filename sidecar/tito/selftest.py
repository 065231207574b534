"""The start-up self-test: is the delta what this template prints, and what this tokenizer encodes? Pure.

For every event of a synthetic conversation the delta behind the short history is compared with the delta
behind the full history, and the ids of `A + stop + delta` with the ids of the two halves. A template that
fails prints something that depends on earlier turns; a tokenizer that fails merges across the stop token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from sidecar.tito.delta import Conversation, Delta, PromptBuilder, short_history
from sidecar.tito.errors import TemplateError, TitoError
from sidecar.tito.messages import Call, Message

_CLOCK = datetime(2026, 1, 2, 3, 4, 5)
_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}


@dataclass(frozen=True, slots=True)
class Event:
    """One way a conversation goes on: `appended` messages after the reply at `history[-1]`."""

    name: str
    history: Sequence[Message]
    appended: Sequence[Message]
    needs_tools: bool

    @property
    def conversation(self) -> Conversation:
        """Tools only where the event is about tools: some templates switch branch with them."""
        return Conversation(tools=[_TOOL] if self.needs_tools else None, template_kwargs={}, clock=_CLOCK)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`failures` maps an event to what was wrong with it. `tools`: the template prints tool results;
    `prints_tools`: it prints the tool list, so that a changed list changes the prompt."""

    failures: dict[str, str]
    tools: bool
    prints_tools: bool

    @property
    def exact(self) -> bool:
        """True if every event that the template supports gave the exact delta."""
        return not self.failures


def _call(identifier: str, word: str) -> Call:
    arguments = {"word": word}
    return Call(identifier, "look_up", f'{{"word": "{word}"}}', arguments)


def events() -> list[Event]:
    """Every kind of append, after histories that hold reasoning, calls and several user turns."""
    system, first = Message("system", "Be brief."), Message("user", "What is a sidecar?")
    one_call = Message("assistant", "", "I look.", (_call("call_1", "sidecar"),))
    result = Message("tool", "a small car", call_id="call_1", name="look_up")
    two_calls = Message("assistant", "Two more.", "Hm.", (_call("call_2", "side"), _call("call_3", "car")))
    results = [
        Message("tool", "a flank", call_id="call_2", name="look_up"),
        Message("tool", "a vehicle", call_id="call_3", name="look_up"),
    ]
    answer = Message("assistant", "A car at the side.", "Now I know.")
    again = Message("user", "And a token?")
    plain = [system, first, Message("assistant", "A car."), again, Message("assistant", "A mark.")]
    loop = [system, first, one_call, result, two_calls]
    return [
        Event("user", plain, [Message("user", "Thanks.")], False),
        Event("user_without_system", plain[1:], [Message("user", "Thanks.")], False),
        Event("tool", [system, first, one_call], [result], True),
        Event("parallel_tools", loop, results, True),
        Event("tool_then_user", [system, first, one_call], [result, again], True),
        Event("user_after_tools", [*loop, *results, answer], [again], True),
        Event("tool_in_second_turn", [*loop, *results, answer, again, one_call], [result], True),
    ]


def check_template(builder: PromptBuilder) -> Verdict:
    """Run every event. Tool events are skipped for a template that prints no tool results."""
    tools, prints_tools = _supports_tools(builder), _prints_tools(builder)
    failures: dict[str, str] = {}
    for event in events():
        if event.needs_tools and not tools:
            continue
        failure = _check_event(builder, event)
        if failure is not None:
            failures[event.name] = failure
    return Verdict(failures, tools, prints_tools)


def _check_event(builder: PromptBuilder, event: Event) -> str | None:
    *before, reply = event.history
    try:
        expected = builder.delta(before, reply, event.appended, event.conversation)
    except TitoError as error:
        if event.name == "user_without_system" and isinstance(error, TemplateError):
            return None  # a template may insist on a system message: such requests are refused in its own words
        return str(error)
    try:
        short = builder.delta(short_history(event.history), reply, event.appended, event.conversation)
    except TitoError as error:
        return str(error)
    if short.close_id != expected.close_id or not np.array_equal(short.ids, expected.ids):
        printed, full = builder.codec.decode(short.ids.tolist()), builder.codec.decode(expected.ids.tolist())
        return f"after the short history {printed!r}, after the full history {full!r}"
    return _check_seam(builder, expected)


def _check_seam(builder: PromptBuilder, delta: Delta) -> str | None:
    """Encoding must not depend on what stands before the stop token."""
    codec = builder.codec
    ids = delta.ids.tolist()
    before, close, text = "An answer.", codec.decode([delta.close_id]), codec.decode(ids)
    whole = codec.encode(before + close + text).tolist()
    halves = [*codec.encode(before + close).tolist(), *ids]
    if whole == halves:
        return None
    position = next((i for i, (a, b) in enumerate(zip(whole, halves, strict=False)) if a != b), len(halves))
    return f"the tokenizer merges across {close!r}: ids differ from position {position} on"


def _supports_tools(builder: PromptBuilder) -> bool:
    call, result = Message("assistant", "", None, (_call("c", "w"),)), Message("tool", "RESULT", call_id="c")
    try:
        text = builder.template.render(
            [Message("user", "u"), call, result], [_TOOL], {}, _CLOCK, add_generation_prompt=True
        )
    except TitoError:
        return False
    return "RESULT" in text and "look_up" in text


def _prints_tools(builder: PromptBuilder) -> bool:
    messages = [Message("system", "s"), Message("user", "u")]
    try:
        return builder.template.render(messages, [_TOOL], {}, _CLOCK) != builder.template.render(
            messages, None, {}, _CLOCK
        )
    except TitoError:
        return True
