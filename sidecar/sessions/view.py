"""The live view of a session: its steps with their state, and why each is where it is. Reads blobs, changes nothing
but the session's notes of what it found.
"""

from __future__ import annotations

import asyncio
from typing import Any

from sidecar.sessions.session import Session
from sidecar.sessions.step_run import StepRun
from sidecar.tito.breaks import Place, find_breaks, needed_keys, to_explain
from sidecar.tito.fingerprint import MatchRules
from sidecar.tito.records import BreakReason, Forgiven, StepRecord
from sidecar.tito.rejected import rejected_steps
from sidecar.tito.trajectory import Node, main_lineage


async def session_view(session: Session, rules: MatchRules) -> dict[str, Any]:
    """`GET /session/{id}`. Reads the store only for roots and branches that were not explained yet. Raises
    `StoreError`."""
    await _explain(session, rules)
    rejected = rejected_steps(session.trajectory)
    continuing = {node for node in main_lineage(session.trajectory) if node.parent is None}
    committed = [
        {
            **_step(node),
            "rejected": node.record.step_id in rejected,
            "break_reason": _break_reason(node, session.breaks.get(node.record.step_id), node in continuing),
        }
        for node in session.trajectory
    ]
    return {
        "session_id": session.session_id,
        "instance_id": session.row.instance_id,
        "run_id": session.row.run_id,
        "state": session.row.state,
        "lineages": len(session.trajectory.roots),
        "steps": [*committed, *map(_waiting, session.waiting), *map(_running, session.runs.values())],
    }


async def _explain(session: Session, rules: MatchRules) -> None:
    """What broke a match never changes, so that each is found once; in a thread, since histories may be long."""
    records = [node.record for node in session.trajectory]
    if any(record.step_id not in session.breaks for record in to_explain(records)):
        blobs = await session.read_blobs(needed_keys(records))
        session.breaks |= await asyncio.to_thread(find_breaks, records, blobs, rules)


def _step(node: Node) -> dict[str, Any]:
    record = node.record
    return {
        "step_id": record.step_id,
        "parent": record.parent_id,
        "lineage_id": node.lineage()[0].record.step_id,
        "state": record.state,
        "delivered": node.delivered,
        "finish_reason": record.finish_reason,
        "context_tokens": len(record.context_ids),
        "output_tokens": len(record.output_ids),
        "versions": list(dict.fromkeys(span.version for span in record.version_spans)),
        "sampling": record.sampling,
        "extra": record.extra,
        "forgiven": forgiven_json(record.forgiven),
        "segment_reason": record.segment_reason,
        "template_sha256": record.template_sha256,
        "tokenizer_sha256": record.tokenizer_sha256,
        "tokenizer": record.tokenizer,
    }


def _break_reason(node: Node, place: Place | None, continuing: bool) -> dict[str, Any] | None:
    """Why the step does not go on where an earlier one ended; None for the first root and for steps that do."""
    record = node.record
    if place is not None:
        name = "history_rewrite" if continuing else record.segment_reason or "branch"
        reason = BreakReason(name, *place)
    elif node.parent is not None and record.break_reason is not None:
        reason = record.break_reason  # known when the step was planned
    else:
        return None
    return {
        "segment_reason": reason.segment_reason,
        "message_index": reason.message_index,
        "field": reason.field,
    }


def _waiting(record: StepRecord) -> dict[str, Any]:
    return {
        "step_id": record.step_id,
        "parent": record.parent_id,
        "state": record.state,
        "delivered": False,
        "output_tokens": len(record.output_ids),
        "sampling": record.sampling,
    }


def _running(run: StepRun) -> dict[str, Any]:
    return {
        "step_id": run.step_id,
        "parent": run.draft.parent_id,
        "state": "detached" if run.detached else "running",
        "delivered": False,
        "output_tokens": len(run.generation.output_ids),
        "sampling": run.draft.sampling,
    }


def forgiven_json(forgiven: tuple[Forgiven, ...]) -> list[dict[str, Any]]:
    """The audit of a step."""
    return [{"message_index": item.message_index, "field": item.field, "kind": item.kind} for item in forgiven]
