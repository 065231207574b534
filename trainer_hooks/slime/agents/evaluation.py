"""Samples of evaluation: one per run, with its reward, whatever of it could train.

slime averages over samples and trains on none. Evaluation often samples greedily or with top-p, and then no
token is trainable; its response is all that was sampled. No shared state; the template is not modified, except
by `failed_evaluation` as `mark_aborted_no_grad` says.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from trainer_hooks.slime.samples import write_sample_from_segment
from trainer_hooks.slime.segments.aborted_sample import abort_session
from trainer_hooks.slime.segments.reward_value import terminal_reward, zero_reward
from trainer_hooks.slime.segments.sample_fields import STALE_KEYS, metadata_without, status_named
from trainer_hooks.slime.segments.segment_arrays import CONTEXT_VERSION, Segment, required
from trainer_hooks.slime.segments.session_segments import read_session
from trainer_hooks.slime.settings import arg


def evaluation_args(args: Any) -> Any:
    """A copy of slime's args for evaluation: `--eval-reward-key` wins, and nothing is cut to fit training."""
    changed = copy.copy(args)
    changed.reward_key = arg(args, "eval_reward_key") or arg(args, "reward_key")
    changed.max_tokens_per_gpu = None
    changed.use_rollout_routing_replay = False
    return changed


def evaluation_sample(template: Any, segments: Sequence[Segment], *, args: Any) -> Any:
    """The anchor as a sample of its own; `args` are those of `evaluation_args`. Raises `SegmentError`."""
    session = read_session(segments)
    anchor = session.ordered[-1]
    where = f"segment {anchor['segment_index']!r}"
    sampled = [int(version != CONTEXT_VERSION) for version in required(anchor, "full_versions", where)]
    sample = copy.deepcopy(template)
    sample.metadata = metadata_without(sample, STALE_KEYS)
    write_sample_from_segment(sample, _unmasked(anchor, sampled), args=args)
    sample.rollout_id = template.index
    sample.reward = terminal_reward(anchor.get("reward"), args)
    sample.metadata |= {
        "parent_traj_id": session.session_id,
        "instance_id": session.instance_id,
        "segment_index": anchor["segment_index"],
        "is_anchor": True,
    }
    return sample


def failed_evaluation(sample: Any, *, session_id: str | None, instance_id: str, args: Any, reason: str) -> Any:
    """What counts as a reward of 0 in the average: one sample of status FAILED."""
    failed = abort_session(sample, session_id=session_id, instance_id=instance_id, args=args, reason=reason)
    failed.status = status_named(sample, "FAILED")
    failed.reward = zero_reward(args)
    return failed


def _unmasked(anchor: Segment, sampled: list[int]) -> Segment:
    extra = {**(anchor.get("extra_info") or {}), "mask_nonlast_version_tokens": False}
    return {**anchor, "full_loss_mask": sampled, "extra_info": extra, "routed_experts": None}
