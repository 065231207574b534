"""Setting slime's `Sample` fields without importing slime.

A sample is changed only through assignment of fresh values: lists and dicts that the template, or a
sibling, may share are replaced and never modified. Not thread-safe per sample; no shared state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_hooks.slime.segments.versions import VERSION_KEYS

WRITTEN_KEYS = ("truncated", *VERSION_KEYS)
"""Metadata keys that writing a segment sets or removes."""

STALE_KEYS = (
    *WRITTEN_KEYS,
    "parent_traj_id",
    "segment_index",
    "instance_id",
    "is_anchor",
    "abort_reason",
    "untrainable_tokens",
    "last_failed_session_id",
    "retry_count",
    "raw_reward",
    "start_rollout_id",
)
"""Metadata of an earlier try. `raw_reward` would overwrite the raw rewards of the whole batch at conversion."""


def status_named(sample: Any, name: str) -> Any:
    """A member of the sample's own `Status` enum."""
    return type(sample.status)[name]


def metadata_without(sample: Any, keys: tuple[str, ...]) -> dict[str, Any]:
    """A new dict: the sample's metadata (None counts as empty) less `keys`."""
    return {key: value for key, value in (sample.metadata or {}).items() if key not in keys}


def untrainable_metadata(anchor: Mapping[str, Any]) -> dict[str, Any]:
    """`{"untrainable_tokens": {reason: tokens}}` of the whole session, where its anchor segment tells any."""
    counts = (anchor.get("extra_info") or {}).get("untrainable_tokens")
    return {"untrainable_tokens": dict(counts)} if counts else {}


def set_training_fields(
    sample: Any,
    *,
    tokens: list[int],
    response: str,
    loss_mask: list[int],
    logprobs: list[float],
    routed_experts: Any,
    weight_versions: list[str],
    status: str,
    remove_sample: bool,
) -> None:
    """Set every field that a rollout fills, whatever the sample held, so that nothing of an earlier try stays.

    `loss_mask` and `logprobs` have one entry per token of the response, which ends with `tokens`.
    """
    sample.tokens = tokens
    sample.response = response
    sample.response_length = len(loss_mask)
    sample.loss_mask = loss_mask
    sample.rollout_log_probs = logprobs
    sample.rollout_routed_experts = routed_experts
    sample.rollout_top_p_token_ids = None
    sample.rollout_top_p_token_offsets = None
    sample.teacher_log_probs = None
    sample.weight_versions = weight_versions
    sample.spec_info = type(sample.spec_info)()
    sample.prefix_cache_info = type(sample.prefix_cache_info)()
    sample.status = status_named(sample, status)
    sample.remove_sample = remove_sample
