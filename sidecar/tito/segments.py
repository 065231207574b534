"""From a trajectory to what trains: its segments, and which steps train in which. Pure.

A segment is a path of steps from one that starts a segment to a leaf. A sampled token trains in the anchor's
segment if that holds it, else in the first segment (by commit) that does; everywhere else it is context.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sidecar.tito.rejected import rejected_steps
from sidecar.tito.trajectory import Node, Trajectory, main_lineage
from sidecar.tito.version_rules import ALL_VERSIONS, VersionRules, barred_by_version


class NoSteps(Exception):  # noqa: N818 - a state of the session, answered with 400
    """The session has no step to train on."""


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """One segment: its steps, the ids of the steps that train in it, and why it is a segment of its own."""

    nodes: list[Node]
    trained: frozenset[str]
    reason: str
    is_anchor: bool
    closed: bool
    """A boundary closed it, not the model: a later step goes on in another segment."""

    @property
    def leaf(self) -> Node:
        """Its last step."""
        return self.nodes[-1]


@dataclass(frozen=True, slots=True)
class TrainingRules:
    """Settings that decide what of a session trains; in force as they were when it was finalized.

    `drop_rejected`: delivered replies that the agent dropped do not (they were the policy's actions all the same,
    so they train by default)."""

    drop_rejected: bool = False
    versions: VersionRules = ALL_VERSIONS


DEFAULT_RULES = TrainingRules()


def untrainable_steps(trajectory: Trajectory, rules: TrainingRules = DEFAULT_RULES) -> dict[str, str]:
    """Step id -> reason, for every step whose tokens must not train."""
    reasons: dict[str, str] = {}
    for node in trajectory:
        record = node.record
        if record.state == "aborted":
            reason: str | None = "overtaken" if record.superseded_by else "aborted"
        elif record.superseded_by is not None:
            reason = "overtaken"
        elif not node.delivered:
            reason = "undelivered"
        else:
            reason = record.untrainable
        if reason is not None:
            reasons[record.step_id] = reason
    for step_id in _unresolved_twins(trajectory):
        reasons.setdefault(step_id, "unresolved_retry")
    for step_id in rejected_steps(trajectory) if rules.drop_rejected else ():
        reasons.setdefault(step_id, "rejected")
    trained = [node.record for node in trajectory if node.record.step_id not in reasons]
    return reasons | barred_by_version(trained, rules.versions)


def _unresolved_twins(trajectory: Trajectory) -> list[str]:
    """Steps with the same request body of which none was continued and one is marked as a retry: which of the
    replies the agent kept is not known."""
    twins: dict[tuple[str | None, bytes], list[Node]] = {}
    for node in trajectory:
        if node.record.state == "committed" and node.record.superseded_by is None:
            twins.setdefault((node.record.parent_id, node.record.body_hash), []).append(node)
    return [
        node.record.step_id
        for group in twins.values()
        if len(group) > 1
        and not any(node.children for node in group)
        and any(node.record.retry_count for node in group)
        for node in group
    ]


def plan_segments(
    trajectory: Trajectory, anchor_step_id: str | None = None, rules: TrainingRules = DEFAULT_RULES
) -> list[SegmentPlan]:
    """All segments in order of their last step's commit, the anchor last.

    Raises `NoSteps` for a trajectory without steps, `KeyError` if `anchor_step_id` is none of its steps.
    """
    if not len(trajectory):
        raise NoSteps
    main = main_lineage(trajectory)
    anchor = main[-1]
    if anchor_step_id is not None:
        named = trajectory.get(anchor_step_id)
        if named is None:
            raise KeyError(anchor_step_id)
        anchor = named
    untrainable = untrainable_steps(trajectory, rules)
    ends = _segment_ends(trajectory, untrainable, anchor)
    anchor_end = _anchor_end(ends, anchor)
    paths = sorted(
        (end.segment_path() for end in ends), key=lambda path: (path[-1] is anchor_end, _order(path[-1]))
    )
    owner = _owners([anchor_end.segment_path(), *paths])
    continuations = {node.record.step_id for node in main if node.parent is None and node is not main[0]}
    seen: set[str] = set()
    plans = []
    for path in paths:
        leaf_id = path[-1].record.step_id
        plans.append(
            SegmentPlan(
                nodes=path,
                trained=frozenset(
                    node.record.step_id
                    for node in path
                    if owner[node.record.step_id] == leaf_id and node.record.step_id not in untrainable
                ),
                reason=_reason(path, seen, continuations),
                is_anchor=path[-1] is anchor_end,
                closed=any(
                    child.starts_segment and child.record.state == "committed" for child in path[-1].children
                ),
            )
        )
        seen.update(node.record.step_id for node in path)
    return plans


def _order(node: Node) -> tuple[bool, int]:
    return node.record.sequence is None, node.record.sequence or 0


def _segment_ends(trajectory: Trajectory, untrainable: Collection[str], anchor: Node) -> list[Node]:
    """Last steps of the segments: leaves within their segment. An untrainable leaf ends none; the steps before it
    that no other segment holds end one where the last of them ends."""
    leaves = [node for node in trajectory if all(child.starts_segment for child in node.children)]
    ends = [node for node in leaves if node.record.step_id not in untrainable]
    held = {step.record.step_id for end in ends for step in end.segment_path()}
    for leaf in leaves:
        path = leaf.segment_path()
        while path:
            step_id = path[-1].record.step_id
            if step_id in held:
                break
            if step_id not in untrainable or path[-1] is anchor:
                ends.append(path[-1])
                held.update(step.record.step_id for step in path)
                break
            path.pop()
    inner = {step.record.step_id for end in ends for step in end.segment_path()[:-1]}
    return [end for end in ends if end is anchor or end.record.step_id not in inner]


def _anchor_end(ends: list[Node], anchor: Node) -> Node:
    """The segment that holds the anchor step; the one that ends there if there is, else the first by commit."""
    holding = [end for end in ends if anchor in end.segment_path()]
    return next((end for end in holding if end is anchor), min(holding, key=_order))


def _owners(paths: list[list[Node]]) -> dict[str, str]:
    """Step id -> the last step's id of the segment that trains it; the first path that holds a step wins."""
    owner: dict[str, str] = {}
    for path in paths:
        for node in path:
            owner.setdefault(node.record.step_id, path[-1].record.step_id)
    return owner


def _reason(path: list[Node], seen: set[str], continuations: set[str]) -> str:
    first = path[0].record
    if first.step_id in seen:
        return "branch"
    if first.step_id in continuations:
        return "history_rewrite"
    return first.segment_reason or "root"


def finish_reason(plan: SegmentPlan) -> str:
    """The model's finish reason of the last step, `segment_boundary` if a boundary closed the segment."""
    return "segment_boundary" if plan.closed else plan.leaf.record.finish_reason
