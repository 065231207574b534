"""Which denominator the estimator's loss gets, for samples whose masks and rollout ids are final. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from trainer_hooks.slime.batch.denominators import (
    Denominators,
    Scope,
    prompt_equal_denominators,
    trajectory_denominators,
)
from trainer_hooks.slime.batch.trajectories import describe
from trainer_hooks.slime.errors import ConversionError
from trainer_hooks.slime.settings import choice_setting

PROMPT_EQUAL_ESTIMATORS = frozenset({"grpo", "reinforce_plus_plus_baseline"})
"""Estimators under which each prompt of an optimizer step weighs the same."""


def loss_denominators(
    args: Any, samples: Sequence[Any], masks: Sequence[Sequence[int]], rollout_ids: Sequence[int]
) -> Denominators:
    """`rollout_mask_sums` for `samples`: prompt-equal, or as slime has it (the mask sum of the trajectory).

    `TITO_PROMPT_EQUAL_SCOPE` says whether prompts are counted per optimizer `step` (default) or over the whole
    `batch`. Raises `ConversionError` where a sample belongs to no prompt.
    """
    mask_sums = [sum(mask) for mask in masks]
    if args.advantage_estimator not in PROMPT_EQUAL_ESTIMATORS:
        return trajectory_denominators(mask_sums, rollout_ids)
    return prompt_equal_denominators(
        mask_sums,
        [_prompt(sample) for sample in samples],
        rollout_ids,
        global_batch_size=args.global_batch_size,
        scope=cast(Scope, choice_setting(args, "TITO_PROMPT_EQUAL_SCOPE", ("step", "batch"), "step")),
    )


def _prompt(sample: Any) -> str:
    """The prompt's `instance_id`, else its `group_index`: guessing one would give a sample weight of its own."""
    named = (sample.metadata or {}).get("instance_id")
    if named is not None and named != "":
        return str(named)
    if sample.group_index is None:
        raise ConversionError(
            f"sample {describe(sample)} has neither metadata['instance_id'] nor a group_index, so its prompt is "
            "not known and prompts cannot weigh the same; expand_segments_to_samples sets the first, slime's data "
            "source the second"
        )
    return str(sample.group_index)
