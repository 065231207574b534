"""Denominators of the loss: `rollout_mask_sums`, arithmetic only.

slime 0.3.1 sums `(loss * mask).sum() / max(denominator, 1)` over the samples of an optimizer step and divides
by `global_batch_size`, so a token of sample i weighs `1 / (denominator[i] * global_batch_size)`. With
`M_P * N_P / global_batch_size` that is `1 / (M_P * N_P)`: each of the step's N_P live prompts weighs
1 / N_P, spread evenly over its M_P trainable tokens, however they are split into samples.
Pure functions; safe everywhere.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

Scope = Literal["step", "batch"]


@dataclass(frozen=True, slots=True)
class Denominators:
    """`values` has one entry per sample, in their order."""

    values: list[float]
    below_one: int
    """Samples that train with a denominator below 1: slime clamps it to 1, which shrinks their weight."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Sample positions of each optimizer step, and of the trailing rollouts that slime drops."""

    positions: list[list[int]]
    dropped: list[int]


def optimizer_steps(rollout_ids: Sequence[int], global_batch_size: int) -> Steps:
    """slime's split: `global_batch_size` distinct rollout ids per step in first-seen order."""
    members: dict[int, list[int]] = {}
    for position, rollout_id in enumerate(rollout_ids):
        members.setdefault(rollout_id, []).append(position)
    distinct = list(members.values())
    whole = len(distinct) // global_batch_size * global_batch_size
    steps = [
        [position for found in distinct[start : start + global_batch_size] for position in found]
        for start in range(0, whole, global_batch_size)
    ]
    return Steps(steps, [position for found in distinct[whole:] for position in found])


def prompt_equal_denominators(
    mask_sums: Sequence[int],
    prompts: Sequence[Hashable],
    rollout_ids: Sequence[int],
    *,
    global_batch_size: int,
    scope: Scope,
) -> Denominators:
    """`M_P * N_P / global_batch_size` per sample, from final mask sums and final rollout ids.

    M_P is the mask sum of the sample's prompt, N_P the number of prompts with M_P > 0, both counted per
    optimizer step, or over all samples with scope `batch`. Per step, the trailing rollouts that slime drops
    are counted among themselves, so they touch no step. A sample whose prompt has M_P = 0 gets 1.0, which
    nothing is divided by.
    """
    steps = optimizer_steps(rollout_ids, global_batch_size)
    trained = [position for step in steps.positions for position in step]
    pools = [*steps.positions, steps.dropped] if scope == "step" else [list(range(len(mask_sums)))]
    values = [1.0] * len(mask_sums)
    for pool in pools:
        totals: dict[Hashable, int] = {}
        for position in pool:
            totals[prompts[position]] = totals.get(prompts[position], 0) + mask_sums[position]
        live = sum(total > 0 for total in totals.values())
        for position in pool:
            total = totals[prompts[position]]
            if total:
                values[position] = total * live / global_batch_size
    return Denominators(values, sum(values[i] < 1 and mask_sums[i] > 0 for i in trained))


def trajectory_denominators(mask_sums: Sequence[int], rollout_ids: Sequence[int]) -> Denominators:
    """slime's own: the mask sum over all samples of the same rollout id."""
    totals: dict[int, int] = {}
    for rollout_id, mask_sum in zip(rollout_ids, mask_sums, strict=True):
        totals[rollout_id] = totals.get(rollout_id, 0) + mask_sum
    return Denominators([float(totals[rollout_id]) for rollout_id in rollout_ids], below_one=0)
