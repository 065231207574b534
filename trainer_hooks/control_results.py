"""What the control plane's calls answer, as types: plain dicts with known keys.

Data only. A newer sidecar may send more keys; one that says `NotRequired` may be absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32] | list[int]
Mask = npt.NDArray[np.bool_] | list[int]
Logprobs = npt.NDArray[np.float32] | list[float]


class OpenedSession(TypedDict):
    """`POST /session/open`. `base_url` ends in `/v1`; `api_key` opens this session and no other."""

    session_id: str
    base_url: str
    anthropic_base_url: str
    api_key: str


class FinalizedSession(TypedDict):
    """`POST /session/finalize`; a repeat gets the first reply."""

    success: bool
    aborted_step_ids: list[str]
    session_id: str
    trajectory_id: str
    instance_id: str | None
    finalization_id: str
    num_steps: int
    num_turns: int
    num_segments: int
    history_rewritten: bool
    token_build_mode: str


class DiscardedSession(TypedDict):
    """`POST /session/discard`."""

    success: bool
    session_removed: bool
    segments_removed: int


class SessionView(TypedDict):
    """`GET /session/{id}`. Each step has `step_id`, `state`, `parent`, `delivered` and more."""

    session_id: str
    instance_id: str | None
    run_id: str | None
    state: Literal["open", "finalized", "discarded", "expired"]
    lineages: int
    steps: list[dict[str, Any]]


class Segment(TypedDict):
    """One lineage's tokens. Its arrays have one entry per token: numpy arrays (read-only views of the reply) where
    the read was binary, else lists; `routed_experts` is then an array of shape [tokens - 1, layers, topk], else an
    object of `packed_array`."""

    uid: str
    session_id: str
    trajectory_id: str
    instance_id: str | None
    segment_index: int
    segment_count: int
    tokens: Tokens
    full_loss_mask: Mask
    full_logprobs: Logprobs
    full_versions: Sequence[str]
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    finish_reason: str
    label: Any
    reward: Any
    timestamp: float
    extra_info: dict[str, Any]
    routed_experts: NotRequired[npt.NDArray[Any] | dict[str, Any]]


class Group(TypedDict):
    """Sessions that were read together. `drained_at`: Unix seconds, None if they are not drained."""

    instance_id: str | None
    run_id: str | None
    session_ids: list[str]
    drained_at: float | None


class TrajectoryRead(TypedDict):
    """`POST /trajectory/read`. `groups` is there where groups were asked for; `data` has their sessions' segments
    in the same order. `drained`: what is sent is drained."""

    success: bool
    drained: bool
    data: list[Segment]
    groups: NotRequired[list[Group]]


class OldestUnread(TypedDict):
    """`finalized_at`: Unix seconds."""

    finalized_at: float
    age_seconds: float


class RetentionStats(TypedDict):
    """What one sidecar's retention did since it started. `expired` counts all, `expired_unread` finalized sessions
    that nobody had drained, `expired_open` those that nobody had finalized."""

    unloaded: int
    expired: int
    expired_unread: int
    expired_open: int
    tombstones_forgotten: int
    tombstones: dict[str, int]
    """The same of all sidecars on the store, as far as their tombstones are still there."""


class TrajectoryStats(TypedDict):
    """`GET /trajectory/stats`. `sessions` counts by state; `unread` and `drained` are of the finalized ones."""

    sessions: dict[str, int]
    steps: int
    unread: int
    drained: int
    oldest_unread: OldestUnread | None
    database_bytes: int
    under_way: int
    """Steps of this sidecar that run or wait for a retry."""
    retention: RetentionStats


class PausedRollout(TypedDict):
    """`POST /v1/rollout/pause`. Look at `quiesced`."""

    status: Literal["paused", "already_paused"]
    pause_id: str
    quiesced: bool
    mode: str
    active: int
    suspended: int
    preempted_request_ids: list[str]
    abort_failed_request_ids: list[str]
    version: str | None


class ResumedRollout(TypedDict):
    """`POST /v1/rollout/resume`."""

    status: Literal["resumed", "already_running"]
    paused: bool
    version: str | None
    rollout_epoch: int
    suspended: int


class PauseState(TypedDict):
    """`GET /v1/rollout/pause_state`."""

    paused: bool
    pauses: list[dict[str, Any]]
    version: str | None
    rollout_epoch: int
    active: int
    suspended: int


class LiveSidecar(TypedDict):
    """A sidecar whose lease has not run out. `expires_at`: Unix seconds on the database's clock."""

    sidecar_id: str
    url: str
    control_url: str
    expires_at: float


class LiveSidecars(TypedDict):
    """`GET /integration/sidecars`: all that share the store."""

    sidecars: list[LiveSidecar]


class Health(TypedDict):
    """`GET /health`."""

    status: str


class Readiness(TypedDict):
    """`GET /ready`."""

    ready: bool
    problems: list[str]
    engine: str
    paused: bool


Capabilities = dict[str, Any]
"""`GET /integration/capabilities`."""
