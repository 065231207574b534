"""Flat samples back to trajectories: which belong together, which one is the anchor, which are dead.

slime hands its hooks one flat list over all groups. Pure functions over positions in that list; nothing is
modified.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from trainer_hooks.slime.errors import RewardError


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One agent run: positions of its samples in the flat list, and of its anchor."""

    members: tuple[int, ...]
    anchor: int


def group_trajectories(samples: Sequence[Any]) -> list[Trajectory]:
    """Trajectories in order of their first sample.

    A sample that was never expanded (no `is_anchor` in its metadata) and is alone is its own anchor. Raises
    `RewardError` unless each trajectory has one anchor, and its samples are segments of one session, each once.
    """
    members: dict[Hashable, list[int]] = {}
    for position, sample in enumerate(samples):
        members.setdefault(trajectory_key(sample, position), []).append(position)
    for found in members.values():
        _check_one_session([samples[position] for position in found])
    return [Trajectory(tuple(found), _anchor(samples, found)) for found in members.values()]


def flatten(samples: Any) -> list[Any]:
    """The samples of nested lists of any shape, in their order: fan-out may stand beside single samples."""
    if not isinstance(samples, (list, tuple)):
        return [samples]
    return [sample for inner in samples for sample in flatten(inner)]


def trajectory_key(sample: Any, position: int) -> Hashable:
    """What samples of one trajectory share: `rollout_id`, else `parent_traj_id`, else nothing."""
    if sample.rollout_id is not None:
        return ("rollout_id", sample.rollout_id)
    parent = (sample.metadata or {}).get("parent_traj_id")
    return ("position", position) if parent is None else ("parent_traj_id", parent)


def fill_rollout_ids(samples: Sequence[Any]) -> list[int]:
    """Every sample's rollout id; missing ones get the smallest unused integers, as slime 0.3.1 does.

    Unlike slime, samples without an id that share a `parent_traj_id` get the same one.
    """
    used = {sample.rollout_id for sample in samples}
    fresh: dict[Hashable, int] = {}
    candidate = 0
    filled = []
    for position, sample in enumerate(samples):
        if sample.rollout_id is not None:
            filled.append(sample.rollout_id)
            continue
        key = trajectory_key(sample, position)
        if key not in fresh:
            while candidate in used:
                candidate += 1
            used.add(candidate)
            fresh[key] = candidate
        filled.append(fresh[key])
    return filled


def describe(sample: Any) -> str:
    """Ids of a sample for messages and logs."""
    metadata = sample.metadata or {}
    return (
        f"rollout_id={sample.rollout_id} group_index={sample.group_index} "
        f"session_id={metadata.get('parent_traj_id')} instance_id={metadata.get('instance_id')}"
    )


def _check_one_session(members: Sequence[Any]) -> None:
    """Two runs under one rollout id would train as one; a segment that is there twice would train twice."""
    if len(members) == 1:
        return
    values: dict[str, list[Any]] = {"group_index": [sample.group_index for sample in members]}
    for name in ("parent_traj_id", "instance_id", "segment_index"):
        values[name] = [(sample.metadata or {}).get(name) for sample in members]
    for name in ("group_index", "parent_traj_id", "instance_id"):
        if any(value != values[name][0] for value in values[name]):
            raise RewardError(
                f"trajectory {describe(members[0])}: {name} differs among its {len(members)} samples: "
                f"{list(dict.fromkeys(values[name]))}; every run needs a rollout_id of its own"
            )
    for index in values["segment_index"]:
        if index is not None and values["segment_index"].count(index) > 1:
            raise RewardError(
                f"trajectory {describe(members[0])}: segment_index {index} occurs "
                f"{values['segment_index'].count(index)} times, and would train as often; pass each segment once"
            )


def _anchor(samples: Sequence[Any], members: Sequence[int]) -> int:
    anchors = [i for i in members if (samples[i].metadata or {}).get("is_anchor")]
    if len(anchors) == 1:
        return anchors[0]
    first = samples[members[0]]
    if len(members) == 1 and "is_anchor" not in (first.metadata or {}):
        return members[0]
    found = "more than one anchor" if anchors else "no anchor"
    raise RewardError(
        f"trajectory {describe(first)} has {found} among {len(members)} samples; exactly one must have "
        "metadata['is_anchor'], as expand_segments_to_samples sets it"
    )
