"""What the trainer reads of a segment besides its arrays, as JSON in pieces. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from sidecar.sessions.finalized import FinalizedSession
from sidecar.sessions.rules import training_rules
from sidecar.sessions.view import forgiven_json
from sidecar.tito.history import history_of
from sidecar.tito.modes import recorded_modes
from sidecar.tito.records import StepRecord
from sidecar.tito.segment_columns import token_count, trained_count, version_spans
from sidecar.tito.segments import SegmentPlan, finish_reason


@dataclass(frozen=True, slots=True)
class Blob:
    """Stands for a stored blob, which is JSON, within a document."""

    key: bytes


Document = list[bytes | Blob]
"""JSON in pieces: the large ones are fetched while it is sent."""


def segment_head(session: FinalizedSession, index: int, *, rows_missing: int = 0) -> dict[str, Any]:
    """A segment's fields, as `design/tito.md` names them, but for its arrays, messages and tools."""
    row, plan = session.row, session.plans[index]
    finalization = row.finalization or {}
    records = [node.record for node in plan.nodes]
    leaf = plan.leaf.record
    trained = trained_count(plan)
    return {
        "uid": f"{row.session_id}/{index}",
        "session_id": row.session_id,
        "trajectory_id": row.session_id,
        "instance_id": row.instance_id,
        "segment_index": index,
        "segment_count": len(session.plans),
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
            "version_spans": version_spans(plan),
            "context_token_count": token_count(plan) - trained,
            "output_token_count": trained,
            "untrainable": _untrainable(session, plan),
            **({"untrainable_tokens": _untrainable_tokens(session)} if plan.is_anchor else {}),
            "rejected": [record.step_id for record in records if record.step_id in session.rejected],
            "forgiven": [_forgiven(record) for record in records if record.forgiven],
            **({"routed_rows_missing": rows_missing} if rows_missing else {}),
            "truncated": leaf.finish_reason == "length",
            "mask_nonlast_version_tokens": training_rules(row).versions.mask_nonlast,
        },
    }


def segment_document(session: FinalizedSession, index: int, *, rows_missing: int = 0) -> Document:
    """`segment_head` with messages and tools, as an object that is still open: fields may follow, then `}`."""
    plan = session.plans[index]
    head = segment_head(session, index, rows_missing=rows_missing)
    document: Document = [orjson.dumps(head)[:-1], b',"messages":[']
    for at, stored in enumerate(history_of(plan.leaf)):
        if at:
            document.append(b",")
        document.append(Blob(stored.key) if stored.data is None else stored.data)
    document.append(b'],"tools":')
    tools = plan.leaf.record.tools_hash
    document.append(b"null" if tools is None else Blob(tools))
    return document


def _branch_point(plan: SegmentPlan) -> str | None:
    """The last step that this segment shares with one before it."""
    shared = None
    for node in plan.nodes:
        if len(node.children) > 1 and node is not plan.leaf:
            shared = node.record.step_id
    return shared if plan.reason == "branch" else None


def _untrainable(session: FinalizedSession, plan: SegmentPlan) -> list[dict[str, str]]:
    """Untrainable steps on this path; the anchor also lists those that no segment holds."""
    nodes = session.trajectory if plan.is_anchor else plan.nodes
    reasons = session.untrainable
    listed = [node.record.step_id for node in nodes if node.record.step_id in reasons]
    return [{"step_id": step_id, "reason": reasons[step_id]} for step_id in listed]


def _untrainable_tokens(session: FinalizedSession) -> dict[str, int]:
    """Sampled tokens of the session that do not train, by reason; each step counts once."""
    counts: dict[str, int] = {}
    for node in session.trajectory:
        reason = session.untrainable.get(node.record.step_id)
        if reason is not None:
            counts[reason] = counts.get(reason, 0) + len(node.record.output_ids)
    return counts


def _forgiven(record: StepRecord) -> dict[str, Any]:
    return {
        "step_id": record.step_id,
        "differences": forgiven_json(record.forgiven),
    }
