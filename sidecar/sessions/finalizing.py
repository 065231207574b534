"""What finalizing a session makes of its trajectory: the plan of its segments, and the reply. Pure."""

from __future__ import annotations

import uuid
from typing import Any

from adapters.protocols.errors import RequestError, bad_field
from sidecar.sessions.session import Session
from sidecar.tito.modes import recorded_modes
from sidecar.tito.segments import NoSteps, SegmentPlan, TrainingRules, plan_segments
from sidecar.tito.trajectory import main_lineage


def final_plans(session: Session, anchor_step_id: str | None, rules: TrainingRules) -> list[SegmentPlan]:
    """The session's segments. Raises `RequestError` 400 for none, or for an anchor that is no step of it."""
    try:
        return plan_segments(session.trajectory, anchor_step_id, rules)
    except NoSteps:
        raise RequestError(
            400, f"session {session.session_id!r} has no steps; discard it instead", code="no_steps"
        ) from None
    except KeyError:
        raise bad_field("anchor_step_id", anchor_step_id, "send a step id of this session") from None


def finalize_reply(session: Session, plans: list[SegmentPlan], aborted: list[str]) -> dict[str, Any]:
    """The reply of `/session/finalize`, which every repeat gets too."""
    main = main_lineage(session.trajectory)
    return {
        "success": True,
        "aborted_step_ids": aborted,
        "session_id": session.session_id,
        "trajectory_id": session.session_id,
        "instance_id": session.row.instance_id,
        "finalization_id": uuid.uuid4().hex,
        "num_steps": sum(node.record.state == "committed" for node in session.trajectory),
        "num_turns": sum(node.delivered and node.record.state == "committed" for node in main),
        "num_segments": len(plans),
        "history_rewritten": any(plan.reason == "history_rewrite" for plan in plans),
        "token_build_mode": recorded_modes(plans[-1].leaf.record.extra)["token_build_mode"],
    }
