"""The dead sample: what stands for a trajectory that must not train.

It keeps the shape of the batch (its rollout still counts in `global_batch_size`) and adds nothing to any
gradient. No shared state; not thread-safe per sample.
"""

from __future__ import annotations

import copy
from typing import Any

from trainer_hooks.slime.segments.reward_value import zero_reward
from trainer_hooks.slime.segments.routed_experts import dead_experts
from trainer_hooks.slime.segments.sample_fields import STALE_KEYS, metadata_without, set_training_fields


def mark_aborted_no_grad(sample: Any, *, args: Any = None, reason: str | None = None) -> Any:
    """A dead copy of `sample`: two tokens, one masked response token, reward 0, removed, ABORTED.

    On `sample` itself only `session_id` is cleared, and `metadata["last_failed_session_id"]` and
    `metadata["retry_count"]` are set, so that a retry starts clean. `reason` goes to the copy's
    `metadata["abort_reason"]`.
    """
    return abort_session(
        sample,
        session_id=sample.session_id,
        instance_id=prompt_identity(sample),
        args=args,
        reason=reason,
    )


def abort_session(sample: Any, *, session_id: str | None, instance_id: str, args: Any, reason: str | None) -> Any:
    """`mark_aborted_no_grad` for a session whose ids are known from elsewhere than the sample."""
    dead = copy.deepcopy(sample)
    set_training_fields(
        dead,
        tokens=[0, 0],
        response="",
        loss_mask=[0],
        logprobs=[0.0],
        routed_experts=dead_experts(args),
        weight_versions=[],
        status="ABORTED",
        remove_sample=True,
    )
    dead.reward = zero_reward(args)
    dead.rollout_id = sample.index
    # A re-queued copy must not go back to the failed session: the sidecar answers 409 there.
    dead.session_id = None
    dead.metadata = metadata_without(dead, STALE_KEYS) | {
        "parent_traj_id": session_id or f"no-session-{sample.index}",
        "instance_id": instance_id,
        "segment_index": 0,
        "is_anchor": True,
    }
    if reason is not None:
        dead.metadata["abort_reason"] = reason
    _prepare_retry(sample, session_id)
    return dead


def prompt_identity(sample: Any) -> str:
    """The sample's `instance_id`: from its metadata, else its `group_index`, else `eval-{index}`."""
    named = (sample.metadata or {}).get("instance_id")
    if named is not None and named != "":
        return str(named)
    if sample.group_index is not None:
        return str(sample.group_index)
    return f"eval-{sample.index}"


def _prepare_retry(sample: Any, session_id: str | None) -> None:
    before = sample.metadata or {}
    sample.session_id = None
    sample.metadata = before | {
        "last_failed_session_id": session_id,
        "retry_count": int(before.get("retry_count") or 0) + 1,
    }
