"""The masks that train: after the cap, version masking and removal. Pure; nothing is modified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainer_hooks.slime.batch.trajectories import describe, group_trajectories
from trainer_hooks.slime.errors import ConversionError


def final_masks(samples: Sequence[Any]) -> list[list[int]]:
    """Per sample its mask, shape [response_length]: all ones without a mask, all zeros where removed.

    A removed anchor removes its whole trajectory. Raises `ConversionError` where a mask does not fit its
    response or holds anything but 0 and 1, or where no prompt token precedes the response.
    """
    removed = {i for i, sample in enumerate(samples) if sample.remove_sample}
    for trajectory in group_trajectories(samples):
        if trajectory.anchor in removed:
            removed.update(trajectory.members)
    masks = []
    for i, sample in enumerate(samples):
        mask = _checked(sample, f"samples[{i}] ({describe(sample)})")
        masks.append([0] * len(mask) if i in removed else mask)
    return masks


def _checked(sample: Any, where: str) -> list[int]:
    length = sample.response_length
    if not 0 < length < len(sample.tokens):
        raise ConversionError(
            f"{where}: response_length is {length} with {len(sample.tokens)} tokens; slime needs at least one "
            "response token and one prompt token"
        )
    if sample.loss_mask is None:
        return [1] * length
    if len(sample.loss_mask) != length:
        raise ConversionError(
            f"{where}: loss_mask has {len(sample.loss_mask)} entries for response_length {length}; they must agree"
        )
    mask = np.asarray(sample.loss_mask)
    bad = (mask != 0) & (mask != 1)
    if bad.any():
        i = int(bad.argmax())
        raise ConversionError(f"{where}: loss_mask[{i}] is {sample.loss_mask[i]!r}; it must be 0 or 1")
    found: list[int] = mask.astype(np.int64).tolist()
    return found
