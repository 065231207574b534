"""The four arrays of a segment, as parts: what each of its steps brings, in order, without a copy of the whole.

A session's segments may share most of their tokens, so that together they are many times the session; whoever sends
them takes part after part. Every column of a segment has `token_count` entries. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sidecar.tito.records import CONTEXT_VERSION
from sidecar.tito.segments import SegmentPlan

TOKENS = np.dtype("<i4")
MASK = np.dtype("u1")
LOGPROBS = np.dtype("<f4")


def token_count(plan: SegmentPlan) -> int:
    """The segment's length."""
    return plan.leaf.token_count


def trained_count(plan: SegmentPlan) -> int:
    """Tokens with mask 1."""
    return sum(len(node.record.output_ids) for node in plan.nodes if node.record.step_id in plan.trained)


def tokens(plan: SegmentPlan) -> Iterator[npt.NDArray[np.int32]]:
    """`tokens`: int32 parts."""
    for node in plan.nodes:
        yield node.record.context_ids
        yield node.record.output_ids


def loss_mask(plan: SegmentPlan) -> Iterator[npt.NDArray[np.uint8]]:
    """`full_loss_mask`: uint8 parts; 1 on sampled tokens of the steps that train in this segment."""
    for node in plan.nodes:
        record = node.record
        yield np.zeros(len(record.context_ids), MASK)
        yield np.full(len(record.output_ids), record.step_id in plan.trained, MASK)


def logprobs(plan: SegmentPlan) -> Iterator[npt.NDArray[np.float32]]:
    """`full_logprobs`: float32 parts; 0.0 on context, a sampled token's own on all others, trained or not."""
    for node in plan.nodes:
        yield np.zeros(len(node.record.context_ids), LOGPROBS)
        yield node.record.output_logprobs


def version_runs(plan: SegmentPlan) -> Iterator[tuple[str, int]]:
    """`full_versions` as (version, length), in order; neighbours may have the same version."""
    for node in plan.nodes:
        if len(node.record.context_ids):
            yield CONTEXT_VERSION, len(node.record.context_ids)
        for span in node.record.version_spans:
            yield span.version, span.end - span.start


def version_spans(plan: SegmentPlan) -> list[dict[str, Any]]:
    """Maximal runs of sampled tokens of one version as `{start, end, version}`, positions within the segment."""
    spans: list[dict[str, Any]] = []
    end = 0
    for version, length in version_runs(plan):
        start, end = end, end + length
        if version == CONTEXT_VERSION or not length:
            continue
        if spans and spans[-1]["end"] == start and spans[-1]["version"] == version:
            spans[-1]["end"] = end
        else:
            spans.append({"start": start, "end": end, "version": version})
    return spans
