"""The control plane's calls as data: what to send, how long to wait, whether to repeat, how to read the reply.

No I/O, so that the sync and the async client share every rule. Pure functions; safe everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote

from trainer_hooks.control_errors import STATUS_ERRORS, ControlReplyError, ControlStatusError

PauseMode = Literal["abort", "drain", "hold"]

FINALIZE_TIMEOUT_SECONDS = 60.0
"""What the control plane waits for calls in flight where `timeout_seconds` is not given."""

PAUSE_TIMEOUT_SECONDS = 300.0
"""How long a pause may take to quiesce where `timeout_seconds` is not given."""

REPLY_SECONDS = 60.0
"""Allowance for the reply itself, on top of what the control plane was asked to wait."""


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """One call. Only an idempotent one may be repeated after a failed connect."""

    method: Literal["GET", "POST"]
    path: str
    idempotent: bool
    body: dict[str, Any] | None = None
    params: dict[str, str] = field(default_factory=dict)
    timeout_seconds: float = REPLY_SECONDS
    """How long to wait for the reply: longer than the control plane itself was asked to wait."""


def open_session(
    *,
    session_id: str | None = None,
    instance_id: str | None = None,
    run_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    sampling: Mapping[str, Any] | None = None,
) -> ControlRequest:
    """`POST /session/open`. Without a `session_id` a repeat would open another session."""
    body = _given(
        session_id=session_id, instance_id=instance_id, run_id=run_id, metadata=metadata, sampling=sampling
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
) -> ControlRequest:
    """`POST /session/finalize`; waits up to `timeout_seconds` for calls in flight.

    A repeat gets the first reply. A reward that is no mapping may be any number, numpy's included.
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


def discard_session(session_id: str) -> ControlRequest:
    """`POST /session/discard`."""
    return ControlRequest(
        "POST", "/session/discard", idempotent=True, body={"session_id": _id("session_id", session_id)}
    )


def view_session(session_id: str) -> ControlRequest:
    """`GET /session/{id}`."""
    return ControlRequest("GET", f"/session/{quote(_id('session_id', session_id), safe='')}", idempotent=True)


def read_trajectory(
    *,
    session_id: str | None = None,
    trajectory_id: str | None = None,
    max_groups: int | None = None,
    min_group_size: int | None = None,
    drain: bool = False,
    include_drained: bool = False,
) -> ControlRequest:
    """`POST /trajectory/read` for one session, one trajectory, or up to `max_groups` whole instance groups.

    Arrays come as JSON lists. A draining read is not repeated: the first try may have drained.
    """
    named = _given(session_id=session_id, trajectory_id=trajectory_id, max_groups=max_groups)
    if len(named) != 1:
        raise ValueError(
            f"read_trajectory got {sorted(named) or 'none'} of session_id, trajectory_id, max_groups; "
            "give exactly one"
        )
    if min_group_size is not None and max_groups is None:
        raise ValueError(f"min_group_size is {min_group_size} without max_groups; give max_groups too")
    body = named | _given(
        min_group_size=min_group_size,
        drain=drain or None,
        include_drained=include_drained or None,
        arrays="json",
    )
    return ControlRequest(
        "POST", "/trajectory/read", idempotent=not drain, body=body, timeout_seconds=5 * REPLY_SECONDS
    )


def pause_rollout(
    *,
    reason: str | None = None,
    mode: PauseMode | None = None,
    pause_id: str | None = None,
    timeout_seconds: float | None = None,
    lease_seconds: float | None = None,
    session_id: str | None = None,
    instance_id: str | None = None,
) -> ControlRequest:
    """`POST /v1/rollout/pause`; with `pause_id` it renews that pause. A repeat answers `already_paused`."""
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
) -> ControlRequest:
    """`POST /v1/rollout/resume`; without `pause_id` it lifts every pause. `version` is advisory."""
    body = _given(pause_id=pause_id, version=version, reason=reason)
    return ControlRequest("POST", "/v1/rollout/resume", idempotent=True, body=body)


def pause_state() -> ControlRequest:
    """`GET /v1/rollout/pause_state`."""
    return ControlRequest("GET", "/v1/rollout/pause_state", idempotent=True)


def health() -> ControlRequest:
    """`GET /health`."""
    return ControlRequest("GET", "/health", idempotent=True)


def ready(*, engine: bool = False) -> ControlRequest:
    """`GET /ready`; with `engine` it is not ready until the engine has answered once."""
    return ControlRequest("GET", "/ready", idempotent=True, params={"engine": "1"} if engine else {})


def capabilities() -> ControlRequest:
    """`GET /integration/capabilities`."""
    return ControlRequest("GET", "/integration/capabilities", idempotent=True)


def read_reply(request: ControlRequest, status: int, content: bytes) -> dict[str, Any]:
    """The reply's JSON object.

    Raises `ControlStatusError` on an error status, `ControlReplyError` on another body.
    """
    where = f"{request.method} {request.path}"
    try:
        body: Any = json.loads(content)
    except ValueError:
        body = content[:500].decode("utf-8", "replace")
    if not 200 <= status < 300:
        raise _status_error(where, status, body)
    if not isinstance(body, dict):
        raise ControlReplyError(
            f"{where} answered {str(body)[:200]!r} instead of a JSON object; check TITO_CONTROL_URL",
            status=status,
            code="invalid_reply",
            body=body,
        )
    return body


def _status_error(where: str, status: int, body: Any) -> ControlStatusError:
    envelope = body.get("error") if isinstance(body, dict) else None
    if not isinstance(envelope, dict):
        envelope = {"message": str(body)[:500]}
    return STATUS_ERRORS.get(status, ControlStatusError)(
        f"{where}: {envelope.get('message')}",
        status=status,
        code=envelope.get("code"),
        type=envelope.get("type"),
        param=envelope.get("param"),
        body=body,
    )


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _id(name: str, value: str) -> str:
    if not value:
        raise ValueError(f"{name} is {value!r}; name a session")
    return value
