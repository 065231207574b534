"""From a request's place to the ids to send: only what is new is rendered. Pure; nothing is changed.

`render` reads nothing that ever changes, so it may run in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sidecar.tito.continuation import inside, open_ended, own_ids
from sidecar.tito.delta import Delta, Rendering, short_history
from sidecar.tito.errors import DeltaError, TemplateError
from sidecar.tito.messages import Message
from sidecar.tito.model import Model
from sidecar.tito.place import Placement, Request
from sidecar.tito.records import BreakReason, Ids
from sidecar.tito.thinking import first_changed, restored
from sidecar.tito.trajectory import Node

_BOUNDARY_FIELDS = {
    "tools_changed": "tools",
    "template_changed": "chat_template",
    "tokenizer_changed": "tokenizer",
}
"""What differs from the parent at these boundaries."""


@dataclass(frozen=True, slots=True)
class PlannedPrompt:
    """Ids to append to the parent's tokens, shape [n], or with `segment_reason` the whole prompt.

    `tail` is the end of the prompt's text; `protected` counts control spellings encoded as text."""

    context_ids: Ids
    segment_reason: str | None
    tail: str
    protected: int
    break_reason: BreakReason | None


def render(model: Model, placement: Placement) -> PlannedPrompt:
    """The ids. Raises `TemplateError` if the template refuses the messages."""
    parent = placement.parent
    if parent is not None and placement.resumes:
        return _resume(model, parent)
    if parent is None or placement.forced_boundary is not None:
        boundary = placement.forced_boundary or "root"
        return _full(model, placement, BreakReason(boundary, field=_BOUNDARY_FIELDS.get(boundary)))
    delta = _delta(model, placement, Message.from_json(parent.record.reply))
    if delta is None:
        return _full(model, placement, BreakReason("incremental_failed"))
    appended = _append(parent, delta)
    if not placement.modes.template_decides:
        return appended
    return _as_the_template_shows(model, placement, parent, appended)


def _append(parent: Node, delta: Delta) -> PlannedPrompt:
    """The delta after the parent's tokens, with their end closed exactly once."""
    stop_id = parent.record.stop_id
    if stop_id == delta.close_id:
        return PlannedPrompt(delta.ids, None, delta.tail, delta.protected, None)
    close = [] if delta.close_id is None else [delta.close_id]
    closed = np.concatenate([np.asarray(close, dtype=np.int32), delta.ids])
    if stop_id is None:
        return PlannedPrompt(closed, None, delta.tail, delta.protected, None)
    # The model stopped with another stop token than the template prints there, or the template prints none: that
    # id stays in its segment, and the next one goes on from the tokens before it.
    return PlannedPrompt(
        np.concatenate([parent.token_ids()[:-1], closed]),
        "stop_trimmed",
        delta.tail,
        delta.protected,
        BreakReason("stop_trimmed", parent.record.message_count - 1),
    )


def _delta(model: Model, placement: Placement, reply: Message) -> Delta | None:
    """The delta behind the short history, or behind the full one for a stateful template and where the short one
    prints nothing usable; None if neither does."""
    request, appended = placement.request, placement.appended
    full = list(request.messages[: len(request.messages) - len(appended) - 1])
    # the self-test tries no unfinished reply, so for one the history is not cut short
    short = model.verdict.outcome != "stateful" and not request.continues
    until = None
    if request.continues:
        appended, until = open_ended(appended)
    for history in [short_history(request.messages), full] if short else [full]:
        try:
            delta = model.builder.delta(history, reply, appended, request.conversation, until)
        except (DeltaError, TemplateError):  # what a template refuses as a whole, the full render will say
            continue
        return replace(delta, tail=_tail(model, request, delta.tail))
    return None


def _resume(model: Model, parent: Node) -> PlannedPrompt:
    """The parent's tokens as they are; a stop token at their end is left out, and stays in its segment."""
    record = parent.record
    tail = model.codec.decode(own_ids(parent))
    reasoning = model.parsers.formats.reasoning
    reply = Message.from_json(record.reply)
    begun = bool(reply.reasoning and not reply.content)  # the prompt may have opened the reasoning
    if reasoning is not None and inside(tail, reasoning.opener, reasoning.closer, from_start=begun):
        tail = reasoning.opener
    if record.stop_id is None:
        return PlannedPrompt(np.asarray([], dtype=np.int32), None, tail, 0, None)
    reason = BreakReason("stop_trimmed", record.message_count - 1)
    return PlannedPrompt(parent.token_ids()[:-1], reason.segment_reason, tail, 0, reason)


def _tail(model: Model, request: Request, printed: str) -> str:
    """The end of a prompt, from which the reply's parser tells whether reasoning is open: a text that the client
    began may have opened it further back."""
    reasoning = model.parsers.formats.reasoning
    if not request.continues or reasoning is None:
        return printed
    begun = request.messages[-1].content
    return reasoning.opener if inside(begun, reasoning.opener, reasoning.closer) else printed


def _rendering(model: Model, request: Request, messages: Sequence[Message]) -> Rendering:
    until = None
    if request.continues:
        messages, until = open_ended(messages)
    return model.builder.rendering(messages, request.conversation, until)


def _as_the_template_shows(
    model: Model, placement: Placement, parent: Node, appended: PlannedPrompt
) -> PlannedPrompt:
    """`appended` if it shows the reasoning that the template shows at this request, else the template's prompt."""
    ids = appended.context_ids
    if appended.segment_reason is None:
        ids = np.concatenate([parent.token_ids(), ids])
    messages = restored(placement.request.messages, parent)
    rendering = _rendering(model, placement.request, messages)
    index = first_changed(messages, model.codec.decode(ids.tolist()), rendering.shown)
    if index is None:
        return appended
    reason = BreakReason("thinking_template", index, "reasoning_content")
    return _started(model, placement.request, rendering, reason)


def _full(model: Model, placement: Placement, reason: BreakReason) -> PlannedPrompt:
    messages = placement.request.messages
    if placement.modes.template_decides:
        messages = restored(messages, placement.parent)
    return _started(model, placement.request, _rendering(model, placement.request, messages), reason)


def _started(model: Model, request: Request, rendering: Rendering, reason: BreakReason) -> PlannedPrompt:
    """A segment's first prompt."""
    prompt = model.builder.encoded(rendering)
    tail = _tail(model, request, prompt.tail)
    return PlannedPrompt(prompt.ids, reason.segment_reason, tail, prompt.protected, reason)
