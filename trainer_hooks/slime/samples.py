"""Segments of a session to slime `Sample`s.

Promises: every trainable token of the session ends up in exactly one sample, with its own log-prob and
version; the template is never modified (a session with nothing to train does to it what
`mark_aborted_no_grad` says). slime is not imported: samples are deep copies of the template, and statuses
come from its own enum. No shared state; safe from several threads on different templates.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from trainer_hooks.slime.errors import SegmentError
from trainer_hooks.slime.segments.aborted_sample import abort_session, mark_aborted_no_grad
from trainer_hooks.slime.segments.reward_value import terminal_reward, zero_reward
from trainer_hooks.slime.segments.routed_experts import segment_experts
from trainer_hooks.slime.segments.sample_fields import (
    STALE_KEYS,
    WRITTEN_KEYS,
    metadata_without,
    set_training_fields,
    untrainable_metadata,
)
from trainer_hooks.slime.segments.segment_arrays import Segment, SegmentArrays, read_segment, required
from trainer_hooks.slime.segments.session_segments import read_session
from trainer_hooks.slime.segments.versions import mask_nonlast_versions, trained_versions, version_metadata
from trainer_hooks.slime.settings import token_cap

__all__ = ["expand_segments_to_samples", "mark_aborted_no_grad", "write_sample_from_segment"]


def expand_segments_to_samples(template: Any, segments: Sequence[Segment], *, args: Any = None) -> list[Any]:
    """One sample per segment that trains, ordered by `segment_index`, the anchor last; never empty.

    The anchor is the segment with the highest `segment_index`: it is kept even where nothing in it trains,
    since it carries the reward. `args` is slime's (cap, reward key, routing replay); None applies none of it.
    Where nothing in the whole session trains the list holds one ABORTED sample. Raises `SegmentError`, and
    then the template is as it was.
    """
    session = read_session(segments)
    if template.index is None:
        raise SegmentError("template.index is None; it becomes the rollout_id that all segments share")
    cap = token_cap(args)
    arrays = [read_segment(segment, cap) for segment in session.ordered]
    anchor = session.ordered[-1]
    if not any(each.trainable for each in arrays):
        dead = abort_session(
            template,
            session_id=session.session_id,
            instance_id=session.instance_id,
            args=args,
            reason="nothing_trainable",
        )
        dead.metadata |= untrainable_metadata(anchor)
        return [dead]
    samples = []
    for segment, each in zip(session.ordered, arrays, strict=True):
        if not each.trainable and segment is not anchor:
            continue
        sample = copy.deepcopy(template)
        sample.metadata = metadata_without(sample, STALE_KEYS)
        _write(sample, segment, each, args)
        sample.rollout_id = template.index
        sample.reward = terminal_reward(segment.get("reward"), args) if segment is anchor else zero_reward(args)
        sample.metadata |= {
            "parent_traj_id": session.session_id,
            "instance_id": session.instance_id,
            "segment_index": segment["segment_index"],
            "is_anchor": segment is anchor,
        }
        if segment is anchor:
            sample.metadata |= untrainable_metadata(anchor)
        samples.append(sample)
    return samples


def write_sample_from_segment(sample: Any, segment: Segment, *, args: Any = None) -> Any:
    """Write one segment's arrays, status and versions into `sample`, and return it.

    Capped first; the response runs from the first token with mask 1 to the end, both inclusive. Where no
    such token is left the response is the last token, masked. Reward, ids and `is_anchor` are left to
    `expand_segments_to_samples`. Raises `SegmentError`, and then `sample` is as it was.
    """
    _write(sample, segment, read_segment(segment, token_cap(args)), args)
    return sample


def _write(sample: Any, segment: Segment, arrays: SegmentArrays, args: Any) -> None:
    tokens = arrays.tokens.tolist()
    if len(tokens) < 2:
        raise SegmentError(
            f"segment {segment.get('segment_index')!r} has {len(tokens)} token after the cap; slime needs a "
            "prompt token and a response token"
        )
    routed_experts = segment_experts(
        segment.get("routed_experts"),
        full_length=arrays.full_length,
        kept=len(tokens),
        trains=arrays.trainable,
        args=args,
    )
    finish_reason = required(segment, "finish_reason", f"segment {segment.get('segment_index')!r}")
    loss_mask, logprobs = _response_arrays(segment, arrays)
    set_training_fields(
        sample,
        tokens=tokens,
        response=last_assistant_text(segment.get("messages") or ()),
        loss_mask=loss_mask,
        logprobs=logprobs,
        routed_experts=routed_experts,
        weight_versions=trained_versions(arrays),
        status="TRUNCATED" if finish_reason == "length" else "COMPLETED",
        remove_sample=False,
    )
    sample.metadata = metadata_without(sample, WRITTEN_KEYS) | version_metadata(arrays)
    if arrays.truncated:
        sample.metadata["truncated"] = True


def _response_arrays(segment: Segment, arrays: SegmentArrays) -> tuple[list[int], list[float]]:
    """Loss mask and log-probs of the response, each of shape [response_length]."""
    if not arrays.trainable:
        return [0], [0.0]
    start = arrays.response_start
    masking = (segment.get("extra_info") or {}).get("mask_nonlast_version_tokens")
    loss_mask = mask_nonlast_versions(arrays) if masking else arrays.loss_mask
    return loss_mask[start:].tolist(), arrays.logprobs[start:].tolist()


def last_assistant_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Text of the last assistant message; `""` where there is none or it only calls tools."""
    for message in reversed(messages):
        if message.get("role") == "assistant":
            content = message.get("content")
            if isinstance(content, list):
                return "".join(part.get("text") or "" for part in content)
            return content or ""
    return ""
