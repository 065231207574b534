"""The start-up self-test: is the delta what this template prints, and what this tokenizer encodes? Pure.

For every event of a synthetic conversation the delta behind the full history has to be the end of what the
template prints without any sentinel, to begin where the reply ends, and to encode to the ids that the whole text
has there. The one behind the short history has to be the same, or the template's output depends on earlier turns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from sidecar.tito import probes
from sidecar.tito.delta import Conversation, Delta, PromptBuilder, short_history
from sidecar.tito.errors import TemplateError, TitoError
from sidecar.tito.messages import Message
from sidecar.tito.reply_end import lacks_beginning

_REPLIES = ("An answer.", "One word", "7", "}", "…")
"""Ends of replies, for the seam behind one that no token closes."""


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
        return Conversation([probes.TOOL] if self.needs_tools else None, {}, probes.CLOCK)


Outcome = Literal["exact", "stateful", "refused", "unsupported"]
"""`exact`: the delta behind the short history is what the template prints; `stateful`: only the one behind the full
history is; `refused`: neither can be trusted; `unsupported`: the template itself refuses such a conversation."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What belongs behind a reply (`expected`) and what would stand there instead (`found`), as text or as ids."""

    unit: Literal["character", "id"]
    expected: str | tuple[int, ...]
    found: str | tuple[int, ...]

    @property
    def position(self) -> int:
        """Where the two part, counted in units."""
        pairs = enumerate(zip(self.expected, self.found, strict=False))
        return next((n for n, (a, b) in pairs if a != b), min(len(self.expected), len(self.found)))


@dataclass(frozen=True, slots=True)
class EventResult:
    """What was found for one event. `delta` is the right one where there is one; `reason` says what was wrong, and
    `difference` shows it where two deltas could be compared."""

    event: Event
    outcome: Outcome
    reason: str = ""
    delta: Delta | None = None
    difference: Difference | None = None


Wrong = tuple[str, Difference | None]
"""Why a delta cannot be trusted, and where it shows."""


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


def events() -> list[Event]:
    """Every kind of append, after histories that hold reasoning, calls and several user turns."""
    opening, again = [probes.SYSTEM, probes.QUESTION], Message("user", "And a token?")
    one_call = Message("assistant", "", "I look.", (probes.call("call_1", "sidecar"),))
    result = probes.result("call_1", "a small car")
    two_calls = Message(
        "assistant", "Two more.", "Hm.", (probes.call("call_2", "side"), probes.call("call_3", "car"))
    )
    results = [probes.result("call_2", "a flank"), probes.result("call_3", "a vehicle")]
    other_call, other_result = (
        replace(one_call, calls=(probes.call("call_4", "token"),)),
        probes.result("call_4", "a sign"),
    )
    answer = Message("assistant", "A car at the side.", "Now I know.")
    plain = [*opening, Message("assistant", "A car."), again, Message("assistant", "A mark.")]
    loop, parallel = [*opening, one_call, result], [*opening, two_calls, *results]
    thanks = Message("user", "Thanks.")
    return [
        Event("user", plain, [thanks], False),
        Event("user_without_system", plain[1:], [thanks], False),
        Event("tool", [*opening, one_call], [result], True),
        Event("parallel_tools", [*loop, two_calls], results, True),
        Event("tool_then_user", [*opening, one_call], [result, again], True),
        Event("user_after_tools", [*loop, answer], [again], True),
        Event("user_after_parallel_tools", [*parallel, answer], [again], True),
        Event("tool_after_parallel_tools", [*parallel, other_call], [other_result], True),
        Event("tool_in_second_turn", [*loop, answer, again, other_call], [other_result], True),
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
    wrong = _check_seam(builder, full) or _check_suffix(builder, event, full) or _check_begin(builder, event, full)
    if wrong is not None:
        return EventResult(event, "refused", wrong[0], full, wrong[1])
    try:
        short = builder.delta(short_history(event.history), reply, event.appended, event.conversation)
    except TitoError as error:
        return EventResult(event, "stateful", str(error), full)
    if short.close_id == full.close_id and np.array_equal(short.ids, full.ids):
        return EventResult(event, "exact", "", full)
    reason = f"after the short history {short.text!r}, after the full one {full.text!r}"
    difference = Difference("character", full.text, short.text) if short.text != full.text else None
    return EventResult(event, "stateful", reason, full, difference)


def _check_suffix(builder: PromptBuilder, event: Event, delta: Delta) -> Wrong | None:
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
        return str(error), None
    if text.endswith(delta.text):
        return None
    reason = f"the delta is {delta.text!r}, but the template prints {text[-len(delta.text) - 40 :]!r}"
    close = "" if delta.close_id is None else builder.codec.decode([delta.close_id])
    return reason, _nearest(text, close, delta.text)


def _nearest(text: str, close: str, delta: str) -> Difference | None:
    """The end of `text` behind that of its closing tokens from which on it agrees with the delta for longest."""
    ends = [match.end() for match in re.finditer(re.escape(close), text)] if close else []
    candidates = [Difference("character", text[end:], delta) for end in ends]
    return max(candidates, key=lambda candidate: candidate.position, default=None)


def _check_begin(builder: PromptBuilder, event: Event, delta: Delta) -> Wrong | None:
    """Nothing of the appended messages may stand before the delta: with a stop token that closes messages of every
    role, the first one printed could be the next message's."""
    *before, reply = event.history
    followed = builder.reply_followed(before, reply, event.appended, event.conversation)
    if not lacks_beginning(followed, len(delta.text), [message.content for message in event.appended]):
        return None
    reason = f"behind a reply the template prints {followed!r}, and the delta {delta.text!r} lacks its beginning"
    return reason, Difference("character", followed, delta.text)


def _check_seam(builder: PromptBuilder, delta: Delta) -> Wrong | None:
    """Encoding must not depend on what stands before the token that closes the reply.

    Behind a reply that no token closes a tokenizer may merge across the seam, as it never does with sampled ids:
    there must be some reply after which it gives these ids."""
    codec = builder.codec
    close = "" if delta.close_id is None else codec.decode([delta.close_id])
    difference = Difference("id", (), ())
    for reply in _REPLIES[:1] if close else _REPLIES:
        whole = codec.encode(reply + close + delta.text).tolist()
        halves = [*codec.encode(reply + close).tolist(), *delta.ids.tolist()]
        if whole == halves:
            return None
        difference = Difference("id", tuple(whole), tuple(halves))
    return f"the tokenizer merges across {close!r}: ids differ from position {difference.position} on", difference


def _supports_tools(builder: PromptBuilder) -> bool:
    """Both a call's arguments and a tool's result are printed."""
    call = Message("assistant", "", None, (probes.call("call_1", "ARGUMENT"),))
    for opening in probes.OPENINGS:
        messages = [*opening, call, probes.result("call_1", "RESULT")]
        try:
            text = builder.template.render(messages, [probes.TOOL], {}, probes.CLOCK)
        except TitoError:
            continue
        if "RESULT" in text and "ARGUMENT" in text:
            return True
    return False


def _prints_tools(builder: PromptBuilder) -> bool:
    """Tool lists make a difference to a prompt; taken for granted where the template refuses the question."""
    for opening in probes.OPENINGS:
        try:
            with_tools, without = (
                builder.template.render(opening, tools, {}, probes.CLOCK) for tools in ([probes.TOOL], None)
            )
        except TitoError:
            continue
        return with_tools != without
    return True
