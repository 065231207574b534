"""Segments and samples for the tests of the slime hooks. Pure builders."""

from __future__ import annotations

from typing import Any

from tests.trainer_hooks.slime_stand_in import Sample


def make_segment(
    loss_mask: list[int] | str = "0011",
    *,
    index: int = 0,
    session_id: str = "s1",
    instance_id: str | None = "task",
    first_token: int = 100,
    versions: list[str] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """A segment as `/trajectory/read` gives it; token ids count up from `first_token`, version "1" by default."""
    mask = [int(m) for m in loss_mask]
    n = len(mask)
    segment = {
        "uid": f"{session_id}-{index}",
        "session_id": session_id,
        "trajectory_id": f"t-{session_id}",
        "instance_id": instance_id,
        "segment_index": index,
        "tokens": list(range(first_token, first_token + n)),
        "full_loss_mask": mask,
        "full_logprobs": [-(i + 1) / 8 if m else 0.0 for i, m in enumerate(mask)],
        "full_versions": versions or ["1" if m else "-1" for m in mask],
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": f"answer {index}"}],
        "tools": [],
        "finish_reason": "stop",
        "label": None,
        "reward": None,
        "timestamp": 0.0,
        "extra_info": {"mask_nonlast_version_tokens": False},
    }
    return segment | changes


def make_template(index: int = 0, group_index: int | None = 0, **changes: Any) -> Sample:
    """A sample as slime's data source makes it."""
    fields: dict[str, Any] = {
        "index": index,
        "group_index": group_index,
        "prompt": "q",
        "label": "gold",
        "session_id": f"s{index}",
        "metadata": {"instance_id": "task", "image": "img"},
    }
    return Sample(**(fields | changes))


def dirty_template(**changes: Any) -> Sample:
    """A template that still holds everything an earlier try left behind."""
    sample = make_template(
        tokens=[9, 9, 9],
        response="old",
        response_length=2,
        loss_mask=[1, 1],
        rollout_log_probs=[-1.0, -1.0],
        rollout_top_p_token_ids=[1],
        rollout_top_p_token_offsets=[0, 1, 1],
        rollout_routed_experts=[[[1]]],
        teacher_log_probs=[-2.0, -2.0],
        weight_versions=["old"],
        remove_sample=True,
        reward=7.0,
        rollout_id=99,
        status=Sample.Status.ABORTED,
        metadata={
            "instance_id": "task",
            "image": "img",
            "parent_traj_id": "old",
            "segment_index": 5,
            "is_anchor": False,
            "truncated": True,
            "full_versions": ["old"],
            "version_spans": [],
            "start_token_version": "old",
            "end_token_version": "old",
            "partial_rollout": True,
            "dressage_partial_rollout": True,
            "dressage_start_token_version": "old",
            "dressage_end_token_version": "old",
            "abort_reason": "old",
            "last_failed_session_id": "old",
            "retry_count": 2,
            "raw_reward": 3.0,
            "start_rollout_id": 4,
        },
    )
    sample.spec_info.spec_verify_ct = 5
    sample.prefix_cache_info.cached_tokens = 5
    for name, value in changes.items():
        setattr(sample, name, value)
    return sample
