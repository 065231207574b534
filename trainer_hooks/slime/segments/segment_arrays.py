"""A segment's arrays, checked and capped: the one place that reads `/trajectory/read` segments.

Promises that what it returns is aligned, that trained tokens have finite log-probs <= 0, and that at
least one context token precedes the first trained one. Pure functions on immutable input; no slime.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer_hooks.slime.errors import SegmentError
from trainer_hooks.token_versions import CONTEXT_VERSION as CONTEXT_VERSION
from trainer_hooks.token_versions import TokenVersions

Segment = Mapping[str, Any]
"""Its arrays may be lists or numpy arrays."""

UNKNOWN_VERSION = "unknown"
"""Version of a sampled token whose weights the engine did not name, or with recording off."""


@dataclass(frozen=True, slots=True)
class SegmentArrays:
    """One segment after the cap. All arrays have shape [n]; entry i belongs to token i."""

    tokens: npt.NDArray[np.int64]
    loss_mask: npt.NDArray[np.int64]
    """0 or 1, as the sidecar stored it: before any version masking."""
    logprobs: npt.NDArray[np.float64]
    versions: TokenVersions | None
    """None where the segment carries no versions."""
    full_length: int
    """Tokens before the cap."""

    @property
    def truncated(self) -> bool:
        """Whether the cap cut tokens off."""
        return len(self.tokens) < self.full_length

    @property
    def trainable(self) -> bool:
        """Whether a token with mask 1 is left."""
        return bool(self.loss_mask.any())

    @property
    def response_start(self) -> int:
        """`i0`: index of the first token with mask 1. Only where `trainable`."""
        return int(self.loss_mask.argmax())


def read_segment(segment: Segment, max_tokens: int | None) -> SegmentArrays:
    """Check `segment` and keep its first `max_tokens` tokens (None: all). Raises `SegmentError`."""
    where = f"segment {segment.get('segment_index')!r} of session {segment.get('session_id')!r}"
    tokens = _token_array(required(segment, "tokens", where), where)
    loss_mask = _mask_array(required(segment, "full_loss_mask", where), where)
    logprobs = _logprob_array(required(segment, "full_logprobs", where), where)
    versions = segment.get("full_versions")
    lengths = {"full_loss_mask": len(loss_mask), "full_logprobs": len(logprobs)}
    if versions is not None:
        versions = TokenVersions.of(versions)
        lengths["full_versions"] = len(versions)
    for name, length in lengths.items():
        if length != len(tokens):
            raise SegmentError(
                f"{where}: {name} has {length} entries for {len(tokens)} tokens; every token needs one"
            )
    _check_trained_tokens(loss_mask, logprobs, versions, where)
    kept = slice(0, max_tokens)
    return SegmentArrays(
        tokens=tokens[kept],
        loss_mask=loss_mask[kept],
        logprobs=logprobs[kept],
        versions=None if versions is None else versions[kept],
        full_length=len(tokens),
    )


def required(segment: Segment, name: str, where: str) -> Any:
    """`segment[name]`; raises `SegmentError` where it is missing or None."""
    value = segment.get(name)
    if value is None:
        raise SegmentError(f"{where}: {name} is missing; read the segment from /trajectory/read unchanged")
    return value


def _check_trained_tokens(
    loss_mask: npt.NDArray[np.int64],
    logprobs: npt.NDArray[np.float64],
    versions: TokenVersions | None,
    where: str,
) -> None:
    # Also on untrained tokens: slime multiplies by the mask, and NaN * 0 is NaN.
    bad = ~np.isfinite(logprobs) | ((loss_mask == 1) & (logprobs > 0))
    if bad.any():
        i = int(bad.argmax())
        raise SegmentError(
            f"{where}: full_logprobs[{i}] is {logprobs[i]}; log-probs must be finite, and <= 0 on trained tokens"
        )
    if loss_mask[0] == 1:
        raise SegmentError(
            f"{where}: full_loss_mask[0] is 1; slime needs at least one prompt token before the first trained one"
        )
    if versions is None:
        return
    wrong = versions.mask(CONTEXT_VERSION) & (loss_mask == 1)
    if wrong.any():
        i = int(wrong.argmax())
        raise SegmentError(
            f"{where}: full_versions[{i}] is {CONTEXT_VERSION!r} (context) but full_loss_mask[{i}] is 1; "
            "only sampled tokens may train"
        )


def _token_array(value: Any, where: str) -> npt.NDArray[np.int64]:
    array = _vector(value, "tokens", where)
    if not len(array):
        raise SegmentError(f"{where}: tokens is empty; a segment holds at least a prompt")
    if array.dtype.kind not in "iu":
        raise SegmentError(f"{where}: tokens holds {array.dtype} values; token ids are integers")
    if array.min() < 0:
        i = int(array.argmin())
        raise SegmentError(f"{where}: tokens[{i}] is {array[i]}; token ids are >= 0")
    return array.astype(np.int64, copy=False)


def _mask_array(value: Any, where: str) -> npt.NDArray[np.int64]:
    array = _vector(value, "full_loss_mask", where)
    if len(array) and array.dtype.kind not in "iub":
        raise SegmentError(f"{where}: full_loss_mask holds {array.dtype} values; it must be 0 or 1")
    mask = array.astype(np.int64, copy=False)
    bad = (mask != 0) & (mask != 1)
    if bad.any():
        i = int(bad.argmax())
        raise SegmentError(f"{where}: full_loss_mask[{i}] is {mask[i]}; it must be 0 or 1")
    return mask


def _logprob_array(value: Any, where: str) -> npt.NDArray[np.float64]:
    try:
        return _vector(value, "full_logprobs", where).astype(np.float64, copy=False)
    except (TypeError, ValueError) as error:
        if isinstance(error, SegmentError):
            raise
        raise SegmentError(f"{where}: full_logprobs holds a value that is no number: {error}") from error


def _vector(value: Any, name: str, where: str) -> npt.NDArray[Any]:
    try:
        array = np.asarray(value)
    except ValueError as error:  # lists of unequal length
        raise SegmentError(f"{where}: {name} is not a flat list: {error}") from error
    if array.ndim != 1:
        raise SegmentError(f"{where}: {name} has {array.ndim} dimensions; it must be a flat list")
    return array
