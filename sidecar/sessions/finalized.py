"""A finalized session as it is read: rebuilt from the store alone, by any replica, and never changed.

One event loop. It holds each token once; its segments, which may share most of them, are parts of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from adapters.protocols.errors import RequestError
from sidecar.sessions.errors import session_closed, session_unknown
from sidecar.sessions.rules import training_rules
from sidecar.store.protocol import SessionRow, Store, StoredSession
from sidecar.tito.rejected import rejected_steps
from sidecar.tito.segments import SegmentPlan, plan_segments, untrainable_steps
from sidecar.tito.trajectory import Trajectory

_BYTES_PER_TOKEN = 12
_BYTES_PER_STEP = 4096


@dataclass(frozen=True, slots=True)
class FinalizedSession:
    """`plans` are its segments, the anchor last. Keep the whole while a plan is used: steps forget their children
    with their trajectory."""

    row: SessionRow
    trajectory: Trajectory
    plans: tuple[SegmentPlan, ...]
    untrainable: Mapping[str, str]
    """Step id -> reason."""
    rejected: frozenset[str]

    @property
    def held_bytes(self) -> int:
        """Memory that it takes, roughly."""
        return self.trajectory.token_count * _BYTES_PER_TOKEN + len(self.trajectory) * _BYTES_PER_STEP


async def load_finalized(store: Store, session_id: str) -> FinalizedSession:
    """The session, if it can be read. Raises `RequestError` (404, 409), `StoreError`."""
    stored = await store.load_session(session_id)
    if stored is None:
        raise session_unknown(session_id)
    row = stored.row
    if row.state == "open":
        raise RequestError(
            409,
            f"session {session_id!r} is open; finalize it before it is read",
            code="session_not_finalized",
            retry=False,
        )
    if row.state != "finalized" or row.finalization is None:
        raise session_closed(session_id, row.state)
    return plan_stored(stored)


def plan_stored(stored: StoredSession) -> FinalizedSession:
    """The session as it was finalized; an open one, as if it were now. Raises `NoSteps` without steps."""
    row = stored.row
    trajectory = Trajectory()
    for record in stored.steps:
        if record.state != "detached":
            trajectory.add(record)
    rules = training_rules(row)
    plans = plan_segments(trajectory, (row.finalization or {}).get("anchor_step_id"), rules)
    return FinalizedSession(
        row,
        trajectory,
        tuple(plans),
        untrainable_steps(trajectory, rules),
        frozenset(rejected_steps(trajectory)),
    )
