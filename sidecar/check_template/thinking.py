"""What a template does with the reasoning of earlier replies, told by rendering some. Pure."""

from __future__ import annotations

from typing import Literal

from sidecar.tito import probes
from sidecar.tito.chat_template import ChatTemplate
from sidecar.tito.errors import TitoError
from sidecar.tito.messages import Message

_REASONING = "A thought of mine."

Earlier = Literal["kept", "dropped after the next user message", "dropped in tool loops", "not printed"]
"""What becomes of a reply's reasoning once messages follow it."""


def earlier_reasoning(template: ChatTemplate, *, tools: bool) -> Earlier:
    """Tried with a user message after an answer and, if the template takes `tools`, with a result after a call."""
    answer = Message("assistant", "An answer.", _REASONING)
    kept = _prints(template, [answer, Message("user", "And a token?")])
    if not tools:
        return "kept" if kept else "not printed"
    call = Message("assistant", "", _REASONING, (probes.call("call_1", "sidecar"),))
    in_loop = _prints(template, [call, probes.result("call_1", "a small car")])
    if in_loop:
        return "kept" if kept else "dropped after the next user message"
    return "dropped in tool loops" if kept else "not printed"


def _prints(template: ChatTemplate, messages: list[Message]) -> bool:
    for opening in probes.OPENINGS:
        tools = [probes.TOOL] if messages[0].calls else None
        try:
            return _REASONING in template.render([*opening, *messages], tools, {}, probes.CLOCK)
        except TitoError:
            continue
    return False
