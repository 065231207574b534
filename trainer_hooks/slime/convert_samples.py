"""Hook for `--custom-convert-samples-to-train-data-path`: samples to slime's train data.

Promises: denominators come from the final masks and final rollout ids, so splitting a trajectory into
segments changes no token's gradient weight. Samples are not modified, except for what the reward hook does.
Runs in slime's rollout actor, one call at a time. slime's own reward post-process does not run when
conversion is replaced, so this hook calls it.
"""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

from trainer_hooks.slime.aborted_sample import prompt_identity
from trainer_hooks.slime.conditional_columns import conditional_columns
from trainer_hooks.slime.denominators import (
    Denominators,
    Scope,
    optimizer_steps,
    prompt_equal_denominators,
    trajectory_denominators,
)
from trainer_hooks.slime.errors import ConversionError, SettingError
from trainer_hooks.slime.reward_post_process import reward_post_process
from trainer_hooks.slime.settings import arg, choice_setting
from trainer_hooks.slime.trajectories import describe, fill_rollout_ids, group_trajectories

logger = logging.getLogger(__name__)

PROMPT_EQUAL_ESTIMATORS = frozenset({"grpo", "reinforce_plus_plus_baseline"})


def convert_samples_to_train_data(args: Any, samples: Sequence[Any]) -> dict[str, list[Any]]:
    """slime's train data (slime 0.3.1): under every key a list with one entry per sample.

    Always `tokens`, `response_lengths`, `rewards` (processed), `raw_reward`, `truncated`, `sample_indices`,
    `rollout_ids`, `loss_masks`, `rollout_mask_sums`; under their conditions those of `conditional_columns`.
    Under `reinforce_plus_plus`, which fails on fully masked samples, those are left out. Raises
    `ConversionError`.
    """
    if not samples:
        raise ConversionError("samples is empty; a rollout must return at least global_batch_size trajectories")
    raw, processed = _rewards(args, samples)
    masks = final_masks(samples)
    rollout_ids = fill_rollout_ids(samples)
    raw = _logged_rewards(samples, raw)
    if args.advantage_estimator == "reinforce_plus_plus":
        kept = [i for i, mask in enumerate(masks) if any(mask)]
    else:
        kept = list(range(len(samples)))
    samples = [samples[i] for i in kept]
    masks = [masks[i] for i in kept]
    rollout_ids = [rollout_ids[i] for i in kept]
    if not samples:
        raise ConversionError(
            f"no sample of the batch has a trained token left, and {args.advantage_estimator} takes no other; "
            "look at why the rollouts were aborted"
        )
    _report_dropped(args, samples, rollout_ids)
    return {
        "tokens": [sample.tokens for sample in samples],
        "response_lengths": [sample.response_length for sample in samples],
        "rewards": [processed[i] for i in kept],
        "raw_reward": [raw[i] for i in kept],
        "truncated": [int(sample.status.name == "TRUNCATED") for sample in samples],
        "sample_indices": [sample.index for sample in samples],
        "rollout_ids": rollout_ids,
        "loss_masks": masks,
        "rollout_mask_sums": _denominators(args, samples, masks, rollout_ids),
        **conditional_columns(args, samples),
    }


def final_masks(samples: Sequence[Any]) -> list[list[int]]:
    """The masks that train, each of shape [response_length]: all ones without a mask, all zeros where removed.

    A removed anchor removes its whole trajectory. Raises `ConversionError` where a mask does not fit, or no
    prompt token precedes the response.
    """
    removed = {i for i, sample in enumerate(samples) if sample.remove_sample}
    for trajectory in group_trajectories(samples):
        if trajectory.anchor in removed:
            removed.update(trajectory.members)
    masks = []
    for i, sample in enumerate(samples):
        mask = [1] * sample.response_length if sample.loss_mask is None else sample.loss_mask
        where = f"samples[{i}] ({describe(sample)})"
        if len(mask) != sample.response_length:
            raise ConversionError(
                f"{where}: loss_mask has {len(mask)} entries for response_length {sample.response_length}; "
                "they must agree"
            )
        if not 0 < sample.response_length < len(sample.tokens):
            raise ConversionError(
                f"{where}: response_length is {sample.response_length} with {len(sample.tokens)} tokens; slime "
                "needs at least one response token and one prompt token"
            )
        masks.append([0] * len(mask) if i in removed else list(mask))
    return masks


def _rewards(args: Any, samples: Sequence[Any]) -> tuple[list[Any], list[float]]:
    path = arg(args, "custom_reward_post_process_path")
    post_process = _load(path) if path else reward_post_process
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


def _load(path: str) -> Callable[[Any, Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]]:
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingError(
            f"custom_reward_post_process_path is {path!r}, which cannot be imported: {error}; "
            "it must be package.module.function"
        ) from error
    return cast(Callable[[Any, Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]], found)


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


def _denominators(
    args: Any, samples: Sequence[Any], masks: Sequence[Sequence[int]], rollout_ids: Sequence[int]
) -> list[float]:
    mask_sums = [sum(mask) for mask in masks]
    if args.advantage_estimator in PROMPT_EQUAL_ESTIMATORS:
        found = prompt_equal_denominators(
            mask_sums,
            [prompt_identity(sample) for sample in samples],
            rollout_ids,
            global_batch_size=args.global_batch_size,
            scope=cast(Scope, choice_setting(args, "TITO_PROMPT_EQUAL_SCOPE", ("step", "batch"), "step")),
        )
    else:
        found = trajectory_denominators(mask_sums, rollout_ids)
    _report_clamped(found, len(samples))
    return found.values


def _report_clamped(found: Denominators, total: int) -> None:
    if found.below_one:
        logger.error(
            "denominators_below_one=%d of %d samples: slime clamps them to 1, so their prompts weigh too little; "
            "use a smaller global_batch_size or longer responses",
            found.below_one,
            total,
        )
