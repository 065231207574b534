"""Hook for `--custom-reward-post-process-path`: one advantage per trajectory, on all its segments.

Promises: statistics are over trajectories, never over samples, so a run that split into many segments
weighs as much as one that did not; raw rewards stay sparse and sum to the terminal rewards. The only change
to a sample is `remove_sample = True` on every sample of a dead trajectory. Runs in slime's rollout actor,
one call at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from trainer_hooks.slime.batch.group_baseline import GROUP_BASELINE_ESTIMATORS, STD_ESTIMATORS, centred
from trainer_hooks.slime.batch.trajectories import Trajectory, describe, group_trajectories
from trainer_hooks.slime.check_args import check_args
from trainer_hooks.slime.errors import RewardError
from trainer_hooks.slime.segments.reward_value import finite_reward
from trainer_hooks.slime.settings import arg

logger = logging.getLogger(__name__)


def reward_post_process(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """`(raw, processed)`, both of shape [len(samples)].

    `raw` is the terminal reward on anchors (0.0 where it is missing or not finite) and 0.0 elsewhere.
    `processed` is the anchor's advantage on every sample of its trajectory: centred by the group of equal
    `group_index` where the estimator asks for it, else the raw reward; 0.0 on dead trajectories. A trajectory
    is dead if its anchor is removed, or has no finite reward (counted and logged). Raises `RewardError`, and
    `SettingError` where `args` would train the wrong thing.
    """
    check_args(args)
    trajectories = group_trajectories(samples)
    rewards = {t.anchor: finite_reward(samples[t.anchor], args) for t in trajectories}
    live = _retire_dead(samples, trajectories, rewards)
    raw = [rewards.get(position) or 0.0 for position in range(len(samples))]
    advantages = _advantages(args, samples, {t.anchor: raw[t.anchor] for t in live})
    processed = [0.0] * len(samples)
    for trajectory in live:
        for position in trajectory.members:
            processed[position] = advantages[trajectory.anchor]
    return raw, processed


def _retire_dead(
    samples: Sequence[Any], trajectories: Sequence[Trajectory], rewards: dict[int, float | None]
) -> list[Trajectory]:
    """The live trajectories; all samples of the others are marked as removed."""
    live, unrewarded = [], []
    for trajectory in trajectories:
        anchor = samples[trajectory.anchor]
        if not anchor.remove_sample and rewards[trajectory.anchor] is not None:
            live.append(trajectory)
            continue
        if not anchor.remove_sample:
            unrewarded.append(f"{describe(anchor)} reward={anchor.reward!r}")
        for position in trajectory.members:
            samples[position].remove_sample = True
    if unrewarded:
        logger.warning(
            "trajectories_without_finite_reward=%d of %d; they do not train. First: %s",
            len(unrewarded),
            len(trajectories),
            unrewarded[0],
        )
    return live


def _advantages(args: Any, samples: Sequence[Any], values: dict[int, float]) -> dict[int, float]:
    """Advantage by anchor position, for `values`: terminal reward by anchor position."""
    estimator = args.advantage_estimator
    # slime's own defaults: both are on unless a --disable-... flag says otherwise.
    if estimator not in GROUP_BASELINE_ESTIMATORS or not arg(args, "rewards_normalization", True):
        return values
    divide_by_std = estimator in STD_ESTIMATORS and bool(arg(args, "grpo_std_normalization", True))
    groups: dict[int, list[int]] = {}
    for position in values:
        group = samples[position].group_index
        if group is None:
            raise RewardError(
                f"sample {describe(samples[position])} has no group_index, so {estimator} has no group to take "
                "the mean of; let slime's data source number the groups, or use "
                "--disable-rewards-normalization"
            )
        groups.setdefault(group, []).append(position)
    advantages: dict[int, float] = {}
    for positions in groups.values():
        group_values = [values[position] for position in positions]
        advantages |= zip(positions, centred(group_values, divide_by_std=divide_by_std), strict=True)
    return advantages
