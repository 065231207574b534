"""`sessions show`: one stored session with its steps and, once it is finalized, its segments. Pure."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sidecar.session_tools.listing import ago, shown_state
from sidecar.session_tools.stored import trajectory_of
from sidecar.sessions.rules import training_rules
from sidecar.store.protocol import StoredSession
from sidecar.terminal import visible
from sidecar.tito.records import StepRecord
from sidecar.tito.segments import NoSteps, SegmentPlan, finish_reason, plan_segments, untrainable_steps

_MOST_STEPS = 40


def session_json(stored: StoredSession) -> dict[str, Any]:
    """The session as one JSON object, without its arrays and messages. Times in Unix seconds."""
    row = stored.row
    finalization = row.finalization or {}
    trajectory, rules = trajectory_of(stored), training_rules(row)
    untrainable = untrainable_steps(trajectory, rules)
    try:
        plans = plan_segments(trajectory, finalization.get("anchor_step_id"), rules)
    except NoSteps:
        plans = []
    return {
        "session_id": row.session_id,
        "instance_id": row.instance_id,
        "run_id": row.run_id,
        "state": row.state,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "drained_at": row.drained_at,
        "metadata": row.metadata,
        "sampling": row.sampling,
        "label": finalization.get("label"),
        "reward": finalization.get("reward"),
        "lineages": len(trajectory.roots),
        "steps": [_step(record, untrainable.get(record.step_id)) for record in stored.steps],
        "segments": [_segment(index, plan) for index, plan in enumerate(plans)],
    }


def _step(record: StepRecord, untrainable: str | None) -> dict[str, Any]:
    return {
        "step_id": record.step_id,
        "parent": record.parent_id,
        "state": record.state,
        "delivered": record.delivered,
        "finish_reason": record.finish_reason,
        "context_tokens": len(record.context_ids),
        "output_tokens": len(record.output_ids),
        "versions": list(dict.fromkeys(span.version for span in record.version_spans)),
        "segment_reason": record.segment_reason,
        "untrainable": untrainable,
        "created_at": record.created_at,
    }


def _segment(index: int, plan: SegmentPlan) -> dict[str, Any]:
    return {
        "segment_index": index,
        "reason": plan.reason,
        "is_anchor": plan.is_anchor,
        "finish_reason": finish_reason(plan),
        "steps": len(plan.nodes),
        "tokens": plan.leaf.token_count,
        "trained_tokens": sum(
            len(node.record.output_ids) for node in plan.nodes if node.record.step_id in plan.trained
        ),
    }


def print_session(console: Console, shown: dict[str, Any], now: float) -> None:
    """What `session_json` says, for people, in 80 columns."""
    state = shown_state(shown["state"], shown["drained_at"])
    console.print(Text(f"Session {visible(shown['session_id'])}, {state}", style="bold"))
    facts = Table(box=None, padding=(0, 1), show_header=False, show_edge=False)
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for name in ("instance_id", "run_id", "reward", "label", "sampling", "metadata"):
        if shown[name] not in (None, {}):
            facts.add_row(name, Text(visible(str(shown[name]))))
    facts.add_row("created", f"{ago(now - shown['created_at'])} ago")
    console.print(facts)
    if shown["steps"]:
        console.print()
        console.print(_steps_table(shown["steps"], now))
        if len(shown["steps"]) > _MOST_STEPS:
            console.print(f"... {len(shown['steps']) - _MOST_STEPS} earlier ones are left out; --json has all.")
    if shown["segments"]:
        console.print()
        console.print(_segments_table(shown["segments"]))
        if shown["state"] == "open":
            console.print("These are the segments if it were finalized now.")


def _steps_table(steps: list[dict[str, Any]], now: float) -> Table:
    table = Table(box=None, padding=(0, 1), show_edge=False)
    for name in ("step", "parent", "state", "finish"):
        table.add_column(name, no_wrap=True, overflow="ellipsis", max_width=12)
    for name in ("context", "output"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("does not train", no_wrap=True, overflow="ellipsis")
    table.add_column("age", justify="right", no_wrap=True)
    for step in steps[-_MOST_STEPS:]:
        table.add_row(
            step["step_id"][:8],
            (step["parent"] or "-")[:8],
            step["state"],
            step["finish_reason"],
            f"{step['context_tokens']:,}",
            f"{step['output_tokens']:,}",
            step["untrainable"] or "",
            ago(now - step["created_at"]),
        )
    return table


def _segments_table(segments: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 1), show_edge=False)
    table.add_column("segment", justify="right")
    table.add_column("reason", no_wrap=True)
    table.add_column("ends with", no_wrap=True)
    for name in ("steps", "tokens", "trained"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for one in segments:
        table.add_row(
            str(one["segment_index"]),
            one["reason"],
            one["finish_reason"],
            str(one["steps"]),
            f"{one['tokens']:,}",
            f"{one['trained_tokens']:,}",
            "anchor" if one["is_anchor"] else "",
        )
    return table
