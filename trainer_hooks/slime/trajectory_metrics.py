"""What a batch of samples was: metrics over trajectories, where slime's own count samples. Pure.

slime's averages are over samples, so a run that became five segments weighs five times, its reward of 0.0 on
four of them included. Nothing is modified.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from trainer_hooks.slime.batch.denominators import optimizer_steps
from trainer_hooks.slime.batch.final_masks import final_masks
from trainer_hooks.slime.batch.loss_denominators import loss_denominators
from trainer_hooks.slime.batch.trajectories import Trajectory, fill_rollout_ids, group_trajectories
from trainer_hooks.slime.filters import why_equal
from trainer_hooks.slime.segments.reward_value import finite_reward

Metrics = dict[str, float]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}")


def trajectory_metrics(args: Any, samples: Sequence[Any]) -> Metrics:
    """Metrics of one rollout's flat samples, before conversion; names begin with `rollout/`.

    A trajectory is live unless its anchor is removed or has no finite reward. A mean over nothing is left
    out. Raises what conversion would raise on the same samples.
    """
    trajectories = group_trajectories(samples)
    unremoved = [t for t in trajectories if not samples[t.anchor].remove_sample]
    told = {t.anchor: finite_reward(samples[t.anchor], args) for t in unremoved}
    rewards = {anchor: reward for anchor, reward in told.items() if reward is not None}
    live = [t for t in unremoved if t.anchor in rewards]
    masks = _masks_of(samples, live)
    metrics: Metrics = {
        "num_trajectories": len(trajectories),
        "num_live_trajectories": len(live),
        "trajectories_without_reward": len(unremoved) - len(live),
        "trained_tokens": sum(map(sum, masks)),
        **_spread("segments_per_trajectory", [len(t.members) for t in live]),
        **_mean("reward", list(rewards.values())),
        **_ratio("capped_trajectory", [_any_metadata(samples, t, "truncated") for t in live]),
        **_equal_groups(samples, rewards),
        **_versions(samples, live),
        **_deaths(samples, trajectories),
        **_untrainable(samples, trajectories),
        **_denominators(args, samples, masks),
    }
    return {f"rollout/{name}": value for name, value in metrics.items()}


def _masks_of(samples: Sequence[Any], live: Sequence[Trajectory]) -> list[list[int]]:
    """The masks that will train: reward post-processing, which comes later, removes all but live trajectories."""
    alive = {position for trajectory in live for position in trajectory.members}
    return [mask if position in alive else [0] * len(mask) for position, mask in enumerate(final_masks(samples))]


def _equal_groups(samples: Sequence[Any], rewards: dict[int, float]) -> Metrics:
    """Groups whose rewards are all the same: they have no advantage and train nothing."""
    groups: dict[Any, list[float]] = {}
    for anchor, reward in rewards.items():
        groups.setdefault(samples[anchor].group_index, []).append(reward)
    return {"equal_reward_groups": sum(why_equal(values) is not None for values in groups.values())}


def _versions(samples: Sequence[Any], live: Sequence[Trajectory]) -> Metrics:
    """Span: weight versions that sampled what a trajectory trains. Gap: how many updates its last one is behind
    the batch's newest, told only where all versions are numbers, as slime names them."""
    seen = [[v for position in t.members for v in samples[position].weight_versions] for t in live]
    seen = [versions for versions in seen if versions]
    metrics = _spread("version_span", [len(set(versions)) for versions in seen])
    if seen and all(version.isdecimal() for versions in seen for version in versions):
        last = [max(map(int, versions)) for versions in seen]
        metrics |= _spread("version_gap", [max(last) - value for value in last])
    return metrics | _ratio("partial_rollout", [len(set(versions)) > 1 for versions in seen])


def _deaths(samples: Sequence[Any], trajectories: Sequence[Trajectory]) -> Metrics:
    """Dead placeholders by reason; a reason that is no short name counts as `other`."""
    counts: Metrics = {}
    for trajectory in trajectories:
        anchor = samples[trajectory.anchor]
        if anchor.remove_sample:
            reason = str((anchor.metadata or {}).get("abort_reason", "removed")).partition(":")[0]
            name = f"dead_trajectories/{reason if _NAME.fullmatch(reason) else 'other'}"
            counts[name] = counts.get(name, 0) + 1
    return counts


def _untrainable(samples: Sequence[Any], trajectories: Sequence[Trajectory]) -> Metrics:
    """Sampled tokens that do not train, by the sidecar's reason."""
    counts: Metrics = {}
    for trajectory in trajectories:
        told = (samples[trajectory.anchor].metadata or {}).get("untrainable_tokens") or {}
        for reason, tokens in told.items():
            counts[f"untrainable_tokens/{reason}"] = counts.get(f"untrainable_tokens/{reason}", 0) + tokens
    return counts


def _denominators(args: Any, samples: Sequence[Any], masks: Sequence[Sequence[int]]) -> Metrics:
    """What slime would clamp (prompts then weigh too little) or drop without a word; both should be 0."""
    rollout_ids = fill_rollout_ids(samples)
    dropped = optimizer_steps(rollout_ids, args.global_batch_size).dropped
    return {
        "denominators_below_one": loss_denominators(args, samples, masks, rollout_ids).below_one,
        "trailing_trajectories_dropped": len({rollout_ids[position] for position in dropped}),
    }


def _any_metadata(samples: Sequence[Any], trajectory: Trajectory, key: str) -> bool:
    return any((samples[position].metadata or {}).get(key) for position in trajectory.members)


def _mean(name: str, values: Sequence[float]) -> Metrics:
    return {f"{name}_mean": statistics.fmean(values)} if values else {}


def _spread(name: str, values: Sequence[float]) -> Metrics:
    return _mean(name, values) | ({f"{name}_max": max(values)} if values else {})


def _ratio(name: str, values: Iterable[bool]) -> Metrics:
    found = list(values)
    return {f"{name}_ratio": sum(found) / len(found)} if found else {}
