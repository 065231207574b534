"""The control plane's calls as data: what to send, how long to wait, whether to repeat, how to read the reply.

No I/O, so that the sync and the async client share every rule. Each function describes one call; the clients have
a method of the same name and arguments. Pure functions; safe everywhere.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote

from trainer_hooks.control_results import (
    Capabilities,
    DiscardedSession,
    FinalizedSession,
    Health,
    LiveSidecars,
    OpenedSession,
    PausedRollout,
    PauseState,
    Readiness,
    ResumedRollout,
    SessionView,
    TrajectoryRead,
    TrajectoryStats,
)

Arrays = Literal["binary", "json"]
PauseMode = Literal["abort", "drain", "hold"]

FINALIZE_TIMEOUT_SECONDS = 60.0
"""What the control plane waits for calls in flight where `timeout_seconds` is not given."""

PAUSE_TIMEOUT_SECONDS = 300.0
"""How long a pause may take to quiesce where `timeout_seconds` is not given."""

REPLY_SECONDS = 60.0
"""Allowance for the reply itself, on top of what the control plane was asked to wait."""


@dataclass(frozen=True, slots=True)
class ControlRequest[T]:
    """One call, whose reply is a T. Only an idempotent one may be repeated after a failed connect."""

    method: Literal["GET", "POST"]
    path: str
    idempotent: bool
    body: dict[str, Any] | None = None
    params: dict[str, str] = field(default_factory=dict)
    timeout_seconds: float = REPLY_SECONDS
    """How long to wait for the reply: longer than the control plane itself was asked to wait."""
    repeat_if_lost: bool = False
    """It may also be sent again when the connection breaks before the whole reply is there."""


def open_session(
    *,
    session_id: str | None = None,
    instance_id: str | None = None,
    run_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    sampling: Mapping[str, Any] | None = None,
    hand_over: bool = False,
) -> ControlRequest[OpenedSession]:
    """Open a session; `sampling` pins what the agent may ask for. `hand_over`: for an agent that has a sidecar of
    its own on the same store: the session belongs to whichever sidecar the agent calls first.

    `POST /session/open`. Without a `session_id` a repeat would open another session."""
    body = _given(
        session_id=session_id,
        instance_id=instance_id,
        run_id=run_id,
        metadata=metadata,
        sampling=sampling,
        hand_over=hand_over or None,
    )
    return ControlRequest("POST", "/session/open", idempotent=session_id is not None, body=body)


def finalize_session(
    session_id: str,
    *,
    instance_id: str | None = None,
    label: str | None = None,
    reward: float | Mapping[str, float] | None = None,
    anchor_step_id: str | None = None,
    timeout_seconds: float | None = None,
) -> ControlRequest[FinalizedSession]:
    """Close the session and build its segments.

    `POST /session/finalize`; waits up to `timeout_seconds` (60 by default) for calls in flight, which are then
    aborted and recorded. A repeat gets the first reply. A reward that is no mapping may be any number, numpy's
    included.
    """
    if reward is not None and not isinstance(reward, Mapping):
        reward = float(reward)
    body = _given(
        session_id=_id("session_id", session_id),
        instance_id=instance_id,
        label=label,
        reward=reward,
        anchor_step_id=anchor_step_id,
        timeout_seconds=timeout_seconds,
    )
    wait = FINALIZE_TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds
    return ControlRequest(
        "POST", "/session/finalize", idempotent=True, body=body, timeout_seconds=wait + REPLY_SECONDS
    )


def discard_session(session_id: str) -> ControlRequest[DiscardedSession]:
    """Abort and forget the session. `POST /session/discard`."""
    return ControlRequest(
        "POST", "/session/discard", idempotent=True, body={"session_id": _id("session_id", session_id)}
    )


def view_session(session_id: str) -> ControlRequest[SessionView]:
    """The session's live view. `GET /session/{id}`."""
    return ControlRequest("GET", f"/session/{quote(_id('session_id', session_id), safe='')}", idempotent=True)


def read_trajectory(
    *,
    session_id: str | None = None,
    trajectory_id: str | None = None,
    max_groups: int | None = None,
    min_group_size: int | None = None,
    run_id: str | None = None,
    drain: bool = False,
    drain_id: str | None = None,
    include_drained: bool = False,
    arrays: Arrays = "binary",
) -> ControlRequest[TrajectoryRead]:
    """The segments of one session, one trajectory, or up to `max_groups` whole instance groups (of `run_id`).

    `POST /trajectory/read`. `drain` marks them as read; a repeat with an equal `drain_id` gets the same again, so a
    draining read is given one, and is sent again when its reply is lost. Keep a `drain_id` of your own where a
    crash must not lose what was drained. `arrays`: as numpy views of the reply, or as JSON lists.
    """
    named = _given(session_id=session_id, trajectory_id=trajectory_id, max_groups=max_groups)
    if len(named) != 1:
        raise ValueError(
            f"read_trajectory got {sorted(named) or 'none'} of session_id, trajectory_id, max_groups; "
            "give exactly one"
        )
    for name, value in (("min_group_size", min_group_size), ("run_id", run_id)):
        if value is not None and max_groups is None:
            raise ValueError(f"{name} is {value!r} without max_groups; give max_groups too")
    if drain_id is not None and not drain:
        raise ValueError(f"drain_id is {drain_id!r} without drain; give drain=True too")
    body = named | _given(
        min_group_size=min_group_size,
        run_id=run_id,
        drain=drain or None,
        drain_id=(drain_id or uuid.uuid4().hex) if drain else None,
        include_drained=include_drained or None,
        arrays=arrays,
    )
    return ControlRequest(
        "POST",
        "/trajectory/read",
        idempotent=True,
        body=body,
        timeout_seconds=5 * REPLY_SECONDS,
        repeat_if_lost=True,
    )


def trajectory_stats() -> ControlRequest[TrajectoryStats]:
    """How many sessions there are, by state, how many are unread and since when, and their bytes.

    `GET /trajectory/stats`."""
    return ControlRequest("GET", "/trajectory/stats", idempotent=True, repeat_if_lost=True)


def pause_rollout(
    *,
    reason: str | None = None,
    mode: PauseMode | None = None,
    pause_id: str | None = None,
    timeout_seconds: float | None = None,
    lease_seconds: float | None = None,
    session_id: str | None = None,
    instance_id: str | None = None,
) -> ControlRequest[PausedRollout]:
    """Pause generation, or renew `pause_id`. Look at `quiesced`.

    `POST /v1/rollout/pause`. A repeat answers `already_paused`."""
    body = _given(
        reason=reason,
        mode=mode,
        pause_id=pause_id,
        timeout_seconds=timeout_seconds,
        lease_seconds=lease_seconds,
        session_id=session_id,
        instance_id=instance_id,
    )
    wait = PAUSE_TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds
    return ControlRequest(
        "POST", "/v1/rollout/pause", idempotent=True, body=body, timeout_seconds=wait + REPLY_SECONDS
    )


def resume_rollout(
    *, pause_id: str | None = None, version: str | None = None, reason: str | None = None
) -> ControlRequest[ResumedRollout]:
    """Lift `pause_id`, or every pause without one. `version` is advisory. `POST /v1/rollout/resume`."""
    body = _given(pause_id=pause_id, version=version, reason=reason)
    return ControlRequest("POST", "/v1/rollout/resume", idempotent=True, body=body)


def pause_state() -> ControlRequest[PauseState]:
    """Which pauses there are. `GET /v1/rollout/pause_state`."""
    return ControlRequest("GET", "/v1/rollout/pause_state", idempotent=True)


def health() -> ControlRequest[Health]:
    """Whether the process lives. `GET /health`."""
    return ControlRequest("GET", "/health", idempotent=True)


def ready(*, engine: bool = False) -> ControlRequest[Readiness]:
    """The readiness report; `ControlUnavailableError`, with the report as `body`, while it is not ready.

    `GET /ready`; with `engine` it is not ready until the engine has answered once."""
    return ControlRequest("GET", "/ready", idempotent=True, params={"engine": "1"} if engine else {})


def capabilities() -> ControlRequest[Capabilities]:
    """Modes, tokenizer, template and engine features. `GET /integration/capabilities`."""
    return ControlRequest("GET", "/integration/capabilities", idempotent=True)


def live_sidecars() -> ControlRequest[LiveSidecars]:
    """All sidecars that share the store and whose lease has not run out. `GET /integration/sidecars`."""
    return ControlRequest("GET", "/integration/sidecars", idempotent=True)


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _id(name: str, value: str) -> str:
    if not value:
        raise ValueError(f"{name} is {value!r}; name a session")
    return value
