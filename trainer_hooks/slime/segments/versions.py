"""Weight versions of a segment: what is recorded on the sample, and `--mask-nonlast-version-tokens`.

Versions are names, compared for equality only: they restart with a trainer's run, so neither string nor
number order means anything. Pure functions; the stored mask is never changed, a new one is returned.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from trainer_hooks.slime.errors import SegmentError
from trainer_hooks.slime.segments.segment_arrays import UNKNOWN_VERSION, SegmentArrays

VERSION_KEYS = (
    "full_versions",
    "version_spans",
    "start_token_version",
    "end_token_version",
    "partial_rollout",
    "dressage_start_token_version",
    "dressage_end_token_version",
    "dressage_partial_rollout",
)
"""Metadata keys that this module may write; a stale one must not survive."""


def trained_versions(arrays: SegmentArrays) -> list[str]:
    """Distinct versions that sampled trainable tokens, in order of their first such token.

    `unknown` (recording off) counts as one version: what cannot be told apart is not claimed to differ.
    """
    return [] if arrays.versions is None else arrays.versions.among(arrays.loss_mask == 1)


def version_metadata(arrays: SegmentArrays) -> dict[str, Any]:
    """The sample's version metadata, computed before version masking; `{}` without recorded versions.

    `start_token_version` and `end_token_version` are those of the first and last trainable token, None
    where nothing trains. `partial_rollout` is there, and True, iff several versions sampled trainable tokens.
    """
    if arrays.versions is None:
        return {}
    trained = np.flatnonzero(arrays.loss_mask)
    start = arrays.versions[int(trained[0])] if len(trained) else None
    end = arrays.versions[int(trained[-1])] if len(trained) else None
    metadata: dict[str, Any] = {"full_versions": list(arrays.versions), "version_spans": arrays.versions.spans}
    for prefix in ("", "dressage_"):
        metadata[f"{prefix}start_token_version"] = start
        metadata[f"{prefix}end_token_version"] = end
        if len(trained_versions(arrays)) > 1:
            metadata[f"{prefix}partial_rollout"] = True
    return metadata


def mask_nonlast_versions(arrays: SegmentArrays) -> npt.NDArray[np.int64]:
    """The loss mask, shape [n], with 1 only on tokens of the version of the last mask-1 token.

    Last by position and within the cap; only for `arrays` that are trainable. Raises `SegmentError` where
    versions were not recorded.
    """
    if arrays.versions is None or UNKNOWN_VERSION in trained_versions(arrays):
        raise SegmentError(
            "mask_nonlast_version_tokens is set but full_versions does not name the version of every "
            "trained token; start the sidecar with --record-token-versions, or without "
            "--mask-nonlast-version-tokens"
        )
    last = arrays.versions[int(np.flatnonzero(arrays.loss_mask)[-1])]
    return arrays.loss_mask * arrays.versions.mask(last)
