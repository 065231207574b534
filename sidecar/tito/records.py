"""The record of one step: everything that has to survive for training and for going on token-exact.

Plain data without behaviour; the trajectory forest links records, the store persists them unchanged.
Arrays are never modified after a record was made, so they can be shared freely.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Logprobs = npt.NDArray[np.float32]

StepState = Literal["detached", "committed", "aborted"]
"""`detached`: nobody listens and it waits for a retry; `committed`: final; `aborted`: final, without a reply."""

CONTEXT_VERSION = "-1"
"""Version of every token that no policy sampled."""

UNKNOWN_VERSION = "unknown"
"""Version of a sampled token whose weights the engine did not name."""


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Tokens `output_ids[start:end]` were sampled by the weights that the engine calls `version`."""

    start: int
    end: int
    version: str


@dataclass(frozen=True, slots=True)
class Forgiven:
    """A difference between a replayed message and the stored one that lenient matching let pass."""

    message_index: int
    field: str
    kind: str


@dataclass(frozen=True, slots=True)
class BreakReason:
    """Why a step does not go on where an earlier one ended: the first message and field that did not match. Without
    an index the field is one of the request; without a field nothing differs from what went before."""

    segment_reason: str
    message_index: int | None = None
    field: str | None = None


@dataclass(frozen=True, slots=True)
class RoutedRows:
    """Rows `[start, end)` of the step's segment: which experts processed its tokens, for routing replay. Row i
    belongs to token i. They are a blob (`routed_rows.blob_key`) of `itemsize` bytes per id, shape [end - start,
    layers, topk], since they are most of a trajectory's bytes and nothing but training reads them."""

    start: int
    end: int
    layers: int
    topk: int
    itemsize: int


@dataclass(slots=True, eq=False)
class StepRecord:
    """One generation by the policy.

    The step's prompt is the tokens of the steps before it in its segment followed by `context_ids`;
    if `segment_reason` is set the step starts a segment and `context_ids` is the whole prompt.
    """

    step_id: str
    session_id: str
    begun: int
    """When the step was admitted, on the session's own clock: each admission and each commit is a tick of it."""
    sequence: int | None
    """When it was committed, on the same clock; None while it is detached."""
    parent_id: str | None
    segment_reason: str | None
    """None when the step appends to its parent's tokens; else `root`, `tools_changed`, `stop_trimmed`, ..."""
    context_ids: Ids
    """Shape [n]: ids appended before this generation (mask 0)."""
    output_ids: Ids
    """Shape [m]: ids the policy sampled, the stop id included."""
    output_logprobs: Logprobs
    """Shape [m], natural log, finite and <= 0."""
    version_spans: tuple[VersionSpan, ...]
    """Cover `output_ids` without gap or overlap."""
    finish_reason: str
    """`stop`, `length`, `tool_calls` or `aborted`."""
    stop_id: int | None
    """The stop id that ends `output_ids`; None if cut by length, a stop string or an abort."""
    message_hashes: tuple[bytes, ...]
    """Blob keys of the request's messages after the parent's reply (all of them at a root), without `prefix`."""
    reply: bytes
    """The assistant message that ends the history after this step, normalised, as JSON: what was returned, behind
    the `prefix` if there is one; `b""` for an aborted step."""
    prompt_chain: bytes
    """16-byte lenient chain hash of the history before `reply`."""
    prompt_exact_chain: bytes
    """16-byte exact chain hash of the history before `reply`, as the request told it."""
    chain: bytes
    """16-byte lenient chain hash of the history after this step."""
    exact_chain: bytes
    """16-byte exact chain hash of the history after this step."""
    message_count: int
    """Messages in the history after this step, its reply included."""
    system_hash: bytes
    """16-byte fingerprint of the leading system message, `b""` without one: compactions keep it."""
    tools_hash: bytes | None
    """Blob key of the request's tool list; None without tools."""
    template_sha256: str
    tokenizer_sha256: str | None
    """Of which vocabulary the ids are, see `Codec`; None if a version of this program that did not record it made
    the step: it may be any."""
    tokenizer: str | None
    """Path or hub id that this tokenizer was read from; None like `tokenizer_sha256`."""
    call_id: str
    """The same for all steps that answer one call (`n` > 1)."""
    body_hash: bytes
    """Hash of the request body's bytes: equal for a client library's retry."""
    retry_count: int
    """`x-stainless-retry-count` of the request."""
    sampling: dict[str, Any]
    """Effective sampling parameters."""
    state: StepState
    delivered: bool
    """The last byte of the reply was accepted by a connected peer, or a child step exists."""
    untrainable: str | None = None
    """Reason known at commit (`off_policy_sampling`, `version_unknown`, ...); others follow from the forest."""
    superseded_by: str | None = None
    """Step id of a marked retry that took this step's place."""
    routed_rows: RoutedRows | None = None
    """Rows stored with this step: new ones, and those that steps before it lack. None without routing replay."""
    prefix: bytes = b""
    """The assistant message that the reply goes on with (`continue_final_message`), as JSON; else `b""`."""
    replaced: tuple[str, ...] = ()
    """Steps whose prompt the request holds with another assistant message in the place of their reply."""
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    """What the template was given besides messages and tools."""
    forgiven: tuple[Forgiven, ...] = ()
    """What the request tells otherwise than it is stored and no earlier step of the lineage lists."""
    break_reason: BreakReason | None = None
    """What was known when the step was planned; `breaks.py` finds what broke the match of a root or branch."""
    created_at: float = 0.0
    """Unix seconds."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Recorded and never acted on: turn id, ignored fields, the modes in force (`modes.py`)."""
