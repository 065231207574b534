"""Hook for `--dynamic-sampling-filter-path`: groups whose rewards are all the same teach nothing.

slime's own filter reads a field of each rollout and fails where a rollout is a list of samples. slime is
imported when the filter is called, for the type that it expects back. Pure; nothing is modified.
"""

from __future__ import annotations

import statistics
from typing import Any

from trainer_hooks.slime.batch.trajectories import flatten, group_trajectories
from trainer_hooks.slime.check_args import check_args
from trainer_hooks.slime.segments.reward_value import finite_reward
from trainer_hooks.slime.slime_modules import slime_name

LEAST_STD = 1e-6
"""As slime 0.3.1: rewards that differ by less count as equal."""


def check_reward_nonzero_std(args: Any, samples: Any, **kwargs: Any) -> Any:
    """slime's `DynamicFilterOutput`: keep the group iff the rewards of its live trajectories differ.

    `samples` is one group: a list of rollouts, each a sample or a list of samples. A dropped group names its
    reason: `zero_std_<reward>`, or `no_live_trajectory`. Raises `RewardError` on rewards that `--reward-key`
    does not fit, `SettingError` where `args` would train the wrong thing, `RuntimeError` outside slime.
    """
    check_args(args)
    reason = why_equal(live_rewards(args, samples))
    output_type = slime_name("slime.rollout.filter_hub.base_types.DynamicFilterOutput")
    return output_type(keep=reason is None, reason=reason)


def live_rewards(args: Any, group: Any) -> list[float]:
    """One reward per live trajectory of a group: its anchor's. Removed and unrewarded ones have none."""
    samples = flatten(group)
    anchors = [samples[trajectory.anchor] for trajectory in group_trajectories(samples)]
    rewards = [None if anchor.remove_sample else finite_reward(anchor, args) for anchor in anchors]
    return [reward for reward in rewards if reward is not None]


def why_equal(rewards: list[float]) -> str | None:
    """Why a group with these rewards has no advantages; None where it has some."""
    if not rewards:
        return "no_live_trajectory"
    if len(rewards) > 1 and statistics.stdev(rewards) > LEAST_STD:
        return None
    return f"zero_std_{round(rewards[0], 1)}"
