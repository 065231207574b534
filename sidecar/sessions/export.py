"""What the trainer reads of a session: segments as JSON objects. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import orjson

from sidecar.sessions.view import forgiven_json
from sidecar.store.protocol import SessionRow
from sidecar.tito.history import history_of
from sidecar.tito.modes import recorded_modes
from sidecar.tito.records import StepRecord
from sidecar.tito.rejected import rejected_steps
from sidecar.tito.segments import (
    SegmentPlan,
    TrainingRules,
    finish_reason,
    segment_arrays,
    untrainable_steps,
    version_spans,
)
from sidecar.tito.trajectory import Trajectory
from sidecar.tito.version_rules import VersionRules

NO_ROWS: Mapping[str, Any] = MappingProxyType({})


def recorded_rules(rules: TrainingRules) -> dict[str, Any]:
    """What a finalization records of the rules in force; `training_rules` reads it."""
    return {
        "drop_rejected": rules.drop_rejected,
        "mask_nonlast_version_tokens": rules.versions.mask_nonlast,
        "max_version_span": rules.versions.max_span,
    }


def training_rules(row: SessionRow) -> TrainingRules:
    """The rules that were in force when the session was finalized."""
    recorded = row.finalization or {}
    return TrainingRules(
        drop_rejected=bool(recorded.get("drop_rejected")),
        versions=VersionRules(
            mask_nonlast=bool(recorded.get("mask_nonlast_version_tokens")),
            max_span=recorded.get("max_version_span"),
        ),
    )


def message_keys(plan: SegmentPlan) -> list[bytes]:
    """Keys of the messages and tools that `segment_json` needs."""
    keys = [stored.key for stored in history_of(plan.leaf) if stored.data is None]
    if plan.leaf.record.tools_hash is not None:
        keys.append(plan.leaf.record.tools_hash)
    return keys


def segment_json(
    row: SessionRow,
    trajectory: Trajectory,
    plan: SegmentPlan,
    index: int,
    count: int,
    blobs: Mapping[bytes, bytes],
    *,
    routed: Mapping[str, Any] = NO_ROWS,
    rows_missing: int = 0,
) -> dict[str, Any]:
    """One segment, as `design/tito.md` names its fields. Its arrays are plain lists of equal length; `routed` is
    what `routed_json` made of its rows."""
    arrays = segment_arrays(plan)
    finalization = row.finalization or {}
    records = [node.record for node in plan.nodes]
    leaf = plan.leaf.record
    rules = training_rules(row)
    reasons = untrainable_steps(trajectory, rules)
    rejected = rejected_steps(trajectory)
    return {
        "uid": f"{row.session_id}/{index}",
        "session_id": row.session_id,
        "trajectory_id": row.session_id,
        "instance_id": row.instance_id,
        "segment_index": index,
        "segment_count": count,
        **arrays,
        **routed,
        "messages": _messages(plan, blobs),
        "tools": orjson.loads(blobs[leaf.tools_hash]) if leaf.tools_hash is not None else None,
        "finish_reason": finish_reason(plan),
        "label": finalization.get("label"),
        "reward": finalization.get("reward") if plan.is_anchor else None,
        "timestamp": leaf.created_at,
        "extra_info": {
            **recorded_modes(leaf.extra),
            "is_anchor": plan.is_anchor,
            "run_id": row.run_id,
            "metadata": row.metadata,
            "template_sha256": leaf.template_sha256,
            "tokenizer": leaf.tokenizer,
            "tokenizer_sha256": leaf.tokenizer_sha256,
            "lineage_id": plan.leaf.lineage()[0].record.step_id,
            "branch_from_step_id": _branch_point(plan),
            "step_ids": [record.step_id for record in records],
            "segment_reason": plan.reason,
            "version_spans": version_spans(arrays["full_versions"]),
            "context_token_count": arrays["full_loss_mask"].count(0),
            "output_token_count": arrays["full_loss_mask"].count(1),
            "untrainable": _untrainable(plan, trajectory, reasons),
            "rejected": [record.step_id for record in records if record.step_id in rejected],
            "forgiven": [_forgiven(record) for record in records if record.forgiven],
            **({"routed_rows_missing": rows_missing} if rows_missing else {}),
            "truncated": leaf.finish_reason == "length",
            "mask_nonlast_version_tokens": rules.versions.mask_nonlast,
        },
    }


def _messages(plan: SegmentPlan, blobs: Mapping[bytes, bytes]) -> list[dict[str, Any]]:
    stored = history_of(plan.leaf)
    return [orjson.loads(blobs[one.key] if one.data is None else one.data) for one in stored]


def _branch_point(plan: SegmentPlan) -> str | None:
    """The last step that this segment shares with one before it."""
    shared = None
    for node in plan.nodes:
        if len(node.children) > 1 and node is not plan.leaf:
            shared = node.record.step_id
    return shared if plan.reason == "branch" else None


def _untrainable(plan: SegmentPlan, trajectory: Trajectory, reasons: Mapping[str, str]) -> list[dict[str, str]]:
    """Untrainable steps on this path; the anchor also lists those that no segment holds."""
    own = {node.record.step_id for node in plan.nodes}
    listed = [node.record.step_id for node in trajectory] if plan.is_anchor else list(own)
    return [{"step_id": step_id, "reason": reasons[step_id]} for step_id in listed if step_id in reasons]


def _forgiven(record: StepRecord) -> dict[str, Any]:
    return {
        "step_id": record.step_id,
        "differences": forgiven_json(record.forgiven),
    }
