"""The start-up self-test: is the delta what this template prints, and what this tokenizer encodes? Pure.

For every event of a synthetic conversation the delta behind the short history is compared with the delta
behind the full history, and the ids of `A + stop + delta` with the ids of the two halves. A template that
fails prints something that depends on earlier turns; a tokenizer that fails merges across the stop token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

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


Outcome = Literal["exact", "stateful", "refused", "unsupported"]
"""`exact`: the delta behind the short history is what the template prints; `stateful`: only the one behind the full
history is; `refused`: neither can be trusted; `unsupported`: the template itself refuses such a conversation."""


@dataclass(frozen=True, slots=True)
class EventResult:
    """What was found for one event. `delta` is the right one where there is one; `reason` says what was wrong."""

    event: Event
    outcome: Outcome
    reason: str = ""
    delta: Delta | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """`tools`: the template prints calls and tool results; `prints_tools`: it prints the tool list, so that another
    list makes another prompt."""

    results: tuple[EventResult, ...]
    tools: bool
    prints_tools: bool

    @property
    def outcome(self) -> Outcome:
        """The worst of the supported events; `refused` if the template supports none."""
        outcomes = {result.outcome for result in self.results} - {"unsupported"}
        if "refused" in outcomes or not outcomes:
            return "refused"
        return "stateful" if "stateful" in outcomes else "exact"

    @property
    def failures(self) -> dict[str, str]:
        """Event -> reason for those that are refused; all of them if none is supported."""
        refused = {r.event.name: r.reason for r in self.results if r.outcome == "refused"}
        return refused if refused or self.outcome != "refused" else {r.event.name: r.reason for r in self.results}


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
    """Run every event. Tool events are left out for a template that prints no calls or no tool results."""
    tools, prints_tools = _supports_tools(builder), _prints_tools(builder)
    results = [_check_event(builder, event) for event in events() if tools or not event.needs_tools]
    return Verdict(tuple(results), tools, prints_tools)


def _check_event(builder: PromptBuilder, event: Event) -> EventResult:
    *before, reply = event.history
    try:
        full = builder.delta(before, reply, event.appended, event.conversation)
    except TemplateError as error:
        return EventResult(event, "unsupported", str(error))
    except TitoError as error:
        return EventResult(event, "refused", str(error))
    wrong = _check_seam(builder, full) or _check_suffix(builder, event, full)
    if wrong is not None:
        return EventResult(event, "refused", wrong, full)
    try:
        short = builder.delta(short_history(event.history), reply, event.appended, event.conversation)
    except TitoError as error:
        return EventResult(event, "stateful", str(error), full)
    if short.close_id == full.close_id and np.array_equal(short.ids, full.ids):
        return EventResult(event, "exact", "", full)
    decode = builder.codec.decode
    reason = (
        f"after the short history {decode(short.ids.tolist())!r}, after the full one {decode(full.ids.tolist())!r}"
    )
    return EventResult(event, "stateful", reason, full)


def _check_suffix(builder: PromptBuilder, event: Event, delta: Delta) -> str | None:
    """Without any sentinel the template has to print the very same end.

    The reply goes in as the sentinel's does: without reasoning, and a reply with calls without text, which Gemma 4
    prints once more after the tool responses although it is in the sampled ids already."""
    *before, reply = event.history
    real = replace(reply, reasoning=None, content="" if reply.calls else reply.content)
    conversation = event.conversation
    try:
        text = builder.template.render(
            [*before, real, *event.appended], conversation.tools, conversation.template_kwargs, conversation.clock
        )
    except TitoError as error:
        return str(error)
    printed = builder.codec.decode(delta.ids.tolist())
    if text.endswith(printed):
        return None
    return f"the delta is {printed!r}, but the template prints {text[-len(printed) - 40 :]!r}"


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
    """Both a call's arguments and a tool's result are printed."""
    call = Message("assistant", "", None, (_call("call_1", "ARGUMENT"),))
    result = Message("tool", "RESULT", call_id="call_1", name="look_up")
    for system in ([], [Message("system", "s")]):
        try:
            text = builder.template.render([*system, Message("user", "u"), call, result], [_TOOL], {}, _CLOCK)
        except TitoError:
            continue
        if "RESULT" in text and "ARGUMENT" in text:
            return True
    return False


def _prints_tools(builder: PromptBuilder) -> bool:
    messages = [Message("system", "s"), Message("user", "u")]
    try:
        return builder.template.render(messages, [_TOOL], {}, _CLOCK) != builder.template.render(
            messages, None, {}, _CLOCK
        )
    except TitoError:
        return True
