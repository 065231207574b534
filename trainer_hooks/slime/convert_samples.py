"""Hook for `--custom-convert-samples-to-train-data-path`: samples to slime's train data.

Promises: denominators come from the final masks and final rollout ids, so splitting a trajectory into
segments changes no token's gradient weight. Samples are not modified, except for what the reward hook does.
Runs in slime's rollout actor, one call at a time. slime's own reward post-process does not run when
conversion is replaced, so this hook calls it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

from trainer_hooks.slime.batch.conditional_columns import conditional_columns
from trainer_hooks.slime.batch.denominators import Denominators, optimizer_steps
from trainer_hooks.slime.batch.final_masks import final_masks
from trainer_hooks.slime.batch.loss_denominators import loss_denominators
from trainer_hooks.slime.batch.trajectories import describe, fill_rollout_ids
from trainer_hooks.slime.check_args import check_args
from trainer_hooks.slime.errors import ConversionError
from trainer_hooks.slime.reward_post_process import reward_post_process
from trainer_hooks.slime.settings import arg
from trainer_hooks.slime.slime_modules import load_path

logger = logging.getLogger(__name__)


def convert_samples_to_train_data(args: Any, samples: Sequence[Any]) -> dict[str, list[Any]]:
    """slime's train data (slime 0.3.1): under every key a list with one entry per sample.

    Always `tokens`, `response_lengths`, `rewards` (processed), `raw_reward`, `truncated`, `sample_indices`,
    `rollout_ids`, `loss_masks`, `rollout_mask_sums`; under their conditions those of `conditional_columns`.
    Under `reinforce_plus_plus`, which fails on fully masked samples, those are left out. Raises
    `ConversionError`, and `SettingError` where `args` would train the wrong thing.
    """
    check_args(args)
    if not samples:
        raise ConversionError("samples is empty; a rollout must return at least global_batch_size trajectories")
    raw, processed = _rewards(args, samples)
    masks = final_masks(samples)
    rollout_ids = fill_rollout_ids(samples)
    raw = _logged_rewards(samples, raw)
    if args.advantage_estimator == "reinforce_plus_plus":
        kept = [i for i, mask in enumerate(masks) if any(mask)]
        _check_a_step_is_left(args, rollout_ids, kept)
    else:
        kept = list(range(len(samples)))
    samples = [samples[i] for i in kept]
    masks = [masks[i] for i in kept]
    rollout_ids = [rollout_ids[i] for i in kept]
    _report_dropped(args, samples, rollout_ids)
    denominators = loss_denominators(args, samples, masks, rollout_ids)
    _report_clamped(denominators, len(samples))
    return {
        "tokens": [sample.tokens for sample in samples],
        "response_lengths": [sample.response_length for sample in samples],
        "rewards": [processed[i] for i in kept],
        "raw_reward": [raw[i] for i in kept],
        "truncated": [int(sample.status.name == "TRUNCATED") for sample in samples],
        "sample_indices": [sample.index for sample in samples],
        "rollout_ids": rollout_ids,
        "loss_masks": masks,
        "rollout_mask_sums": denominators.values,
        **conditional_columns(args, samples),
    }


def _check_a_step_is_left(args: Any, rollout_ids: Sequence[int], kept: Sequence[int]) -> None:
    """Elsewhere dead runs keep the batch's size. Here a single one can leave slime without a whole step, and it
    ends the training with an assertion that says nothing of it."""
    runs, live = len(set(rollout_ids)), len({rollout_ids[i] for i in kept})
    if live < runs and live < args.global_batch_size:
        raise ConversionError(
            f"{live} of {runs} runs have a trained token left, and an optimizer step takes global_batch_size "
            f"{args.global_batch_size}: {args.advantage_estimator} takes no masked sample, so dead runs cannot fill"
            " the batch; look at why they died, and use reinforce_plus_plus_baseline or grpo where some always do"
        )


def _rewards(args: Any, samples: Sequence[Any]) -> tuple[list[Any], list[float]]:
    path = arg(args, "custom_reward_post_process_path")
    post_process = load_path(path, "custom_reward_post_process_path") if path else reward_post_process
    raw, processed = post_process(args, samples)
    raw, processed = list(raw), [float(value) for value in processed]
    if not len(raw) == len(processed) == len(samples):
        raise ConversionError(
            f"reward post-processing returned {len(raw)} raw and {len(processed)} processed rewards for "
            f"{len(samples)} samples; it must return one of each per sample"
        )
    for i, value in enumerate(processed):
        if not math.isfinite(value):
            raise ConversionError(
                f"the processed reward of samples[{i}] ({describe(samples[i])}) is {value}; it must be finite"
            )
    return raw, processed


def _logged_rewards(samples: Sequence[Any], raw: list[Any]) -> list[Any]:
    """slime's rule for logs: `metadata["raw_reward"]` wins where a sample has it."""
    return [(sample.metadata or {}).get("raw_reward", value) for sample, value in zip(samples, raw, strict=True)]


def _report_dropped(args: Any, samples: Sequence[Any], rollout_ids: Sequence[int]) -> None:
    """slime drops trailing rollouts silently (and asserts where there is no whole step at all)."""
    dropped = optimizer_steps(rollout_ids, args.global_batch_size).dropped
    if dropped:
        logger.warning(
            "trailing_trajectories_dropped=%d of %d: slime trains whole steps of global_batch_size=%d. First: %s",
            len({rollout_ids[i] for i in dropped}),
            len(set(rollout_ids)),
            args.global_batch_size,
            describe(samples[dropped[0]]),
        )


def _report_clamped(found: Denominators, total: int) -> None:
    if found.below_one:
        logger.error(
            "denominators_below_one=%d of %d samples: slime clamps them to 1, so their prompts weigh too little; "
            "use a smaller global_batch_size or longer responses",
            found.below_one,
            total,
        )
