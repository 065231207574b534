"""A segment's arrays as lists, put together from its columns. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

from sidecar.tito import segment_columns
from sidecar.tito.segments import SegmentPlan


def segment_arrays(plan: SegmentPlan) -> dict[str, list[Any]]:
    """`tokens`, `full_loss_mask`, `full_logprobs` and `full_versions`."""
    versions = [version for version, length in segment_columns.version_runs(plan) for _ in range(length)]
    return {
        "tokens": np.concatenate(list(segment_columns.tokens(plan))).tolist(),
        "full_loss_mask": np.concatenate(list(segment_columns.loss_mask(plan))).tolist(),
        "full_logprobs": np.concatenate(list(segment_columns.logprobs(plan))).tolist(),
        "full_versions": versions,
    }
