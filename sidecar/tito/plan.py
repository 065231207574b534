"""From a request to the ids to send: match, then render only what is new. Pure; nothing is changed.

`place` looks the request up in the trajectory (on the loop, microseconds); `render` makes the ids and reads
nothing that ever changes, so it may run in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sidecar.tito.delta import Conversation, Delta, Prompt, short_history
from sidecar.tito.errors import DeltaError
from sidecar.tito.fingerprint import Chain, chain_of, digest, forgiven_differences, lenient_form
from sidecar.tito.messages import Message
from sidecar.tito.model import Model
from sidecar.tito.records import BreakReason, Forgiven, Ids
from sidecar.tito.trajectory import Node, Trajectory


@dataclass(frozen=True, slots=True)
class Request:
    """A request as the trajectory sees it. `tools_hash` is None without tools."""

    messages: Sequence[Message]
    conversation: Conversation
    tools_hash: bytes | None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request belongs. `appended` are the messages that its parent's history lacks."""

    request: Request
    parent: Node | None
    appended: Sequence[Message]
    chain: Chain
    """After the request's last message."""
    forgiven: tuple[Forgiven, ...]
    system_hash: bytes
    forced_boundary: str | None
    """Why the parent's tokens cannot be continued, if that is known before rendering."""


@dataclass(frozen=True, slots=True)
class PlannedPrompt:
    """Ids to append to the parent's tokens, shape [n], or with `segment_reason` the whole prompt.

    `tail` is the end of the prompt's text; `protected` counts control spellings encoded as text."""

    context_ids: Ids
    segment_reason: str | None
    tail: str
    protected: int
    break_reason: BreakReason | None


def place(
    model: Model, trajectory: Trajectory, request: Request, match_mode: Literal["lenient", "exact"]
) -> Placement:
    """Find the step that the request continues."""
    chains = chain_of(request.conversation.template_kwargs, request.messages)
    match = trajectory.match(chains, request.tools_hash, exact_only=match_mode == "exact")
    first = request.messages[0]
    system_hash = digest(lenient_form(first)) if first.role == "system" else b""
    if match is None:
        return Placement(request, None, request.messages, chains[-1], (), system_hash, "root")
    record = match.node.record
    forgiven: tuple[Forgiven, ...] = ()
    if not match.exact:
        stored = Message.from_json(record.reply)
        forgiven = forgiven_differences(stored, request.messages[match.depth - 1], match.depth - 1)
    boundary = None
    if record.template_sha256 != model.template_sha256:
        boundary = "template_changed"
    elif record.tools_hash != request.tools_hash and model.verdict.prints_tools:
        boundary = "tools_changed"
    elif model.verdict.outcome == "refused":
        boundary = "unstable_template"
    return Placement(
        request, match.node, request.messages[match.depth :], chains[-1], forgiven, system_hash, boundary
    )


def render(model: Model, placement: Placement) -> PlannedPrompt:
    """The ids. Raises `TemplateError` if the template refuses the messages."""
    request = placement.request
    parent = placement.parent
    if parent is None or placement.forced_boundary is not None:
        return _full(model, request, placement.forced_boundary or "root")
    delta = _delta(model, placement, Message.from_json(parent.record.reply))
    if delta is None:
        return _full(model, request, "incremental_failed")
    stop_id = parent.record.stop_id
    if stop_id == delta.close_id:
        return PlannedPrompt(delta.ids, None, delta.tail, delta.protected, None)
    closed = np.concatenate([np.asarray([delta.close_id], dtype=np.int32), delta.ids])
    if stop_id is None:
        return PlannedPrompt(closed, None, delta.tail, delta.protected, None)
    # The model stopped with another stop token than the template prints there: that id stays in its segment,
    # and the next one goes on from the tokens before it.
    return PlannedPrompt(
        np.concatenate([parent.token_ids()[:-1], closed]),
        "stop_trimmed",
        delta.tail,
        delta.protected,
        BreakReason("stop_trimmed"),
    )


def _delta(model: Model, placement: Placement, reply: Message) -> Delta | None:
    """The delta behind the short history, or behind the full one for a stateful template and where the short one
    prints nothing usable; None if neither does."""
    request, appended = placement.request, placement.appended
    full = list(request.messages[: len(request.messages) - len(appended) - 1])
    histories = [full] if model.verdict.outcome == "stateful" else [short_history(request.messages), full]
    for history in histories:
        try:
            return model.builder.delta(history, reply, appended, request.conversation)
        except DeltaError:
            continue
    return None


def _full(model: Model, request: Request, reason: str) -> PlannedPrompt:
    prompt: Prompt = model.builder.full(request.messages, request.conversation)
    return PlannedPrompt(prompt.ids, reason, prompt.tail, prompt.protected, BreakReason(reason))
