"""The segments of one session as a whole: complete, in order, and of one prompt.

Pure; nothing is modified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer_hooks.slime.errors import SegmentError
from trainer_hooks.slime.segments.segment_arrays import Segment, required


@dataclass(frozen=True, slots=True)
class SessionSegments:
    """`ordered` by `segment_index`; the last one is the anchor, which carries the terminal reward."""

    session_id: str
    instance_id: str
    ordered: tuple[Segment, ...]


def read_session(segments: Sequence[Segment]) -> SessionSegments:
    """Check and order one session's segments. Raises `SegmentError`."""
    if not segments:
        raise SegmentError("segments is empty, so there is no anchor; mark the sample as aborted instead")
    session_id = _common(segments, "session_id")
    indices = [_index(segment, session_id) for segment in segments]
    for index in indices:
        if indices.count(index) > 1:
            raise SegmentError(f"session {session_id!r}: segment_index {index} occurs {indices.count(index)} times")
    ordered = tuple(segment for _, segment in sorted(zip(indices, segments, strict=True), key=lambda p: p[0]))
    _check_complete(ordered, session_id)
    return SessionSegments(session_id, _common(segments, "instance_id"), ordered)


def _common(segments: Sequence[Segment], name: str) -> str:
    values: list[Any] = []
    for segment in segments:
        value = required(segment, name, f"segment {segment.get('segment_index')!r}")
        if value == "":
            raise SegmentError(
                f"segment {segment.get('segment_index')!r}: {name} is empty; name it in /session/open"
            )
        if value not in values:
            values.append(value)
    if len(values) > 1:
        raise SegmentError(f"{name} differs between the segments: {values}; pass those of one session")
    return str(values[0])


def _index(segment: Segment, session_id: str) -> int:
    value = required(segment, "segment_index", f"a segment of session {session_id!r}")
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SegmentError(f"session {session_id!r}: segment_index is {value!r}; it must be an integer >= 0")
    return value


def _check_complete(ordered: Sequence[Segment], session_id: str) -> None:
    """Where segments say how many there are, a missing one would take tokens or the anchor away silently."""
    for segment in ordered:
        count = segment.get("segment_count")
        if count is None:
            continue
        last = ordered[-1]["segment_index"]
        if last != count - 1:
            problem = "the anchor is missing" if last < count - 1 else "there is more than one anchor"
            raise SegmentError(
                f"session {session_id!r}: segment_count is {count} but the last segment_index is {last}: "
                f"{problem}; read the whole trajectory"
            )
        if len(ordered) != count:
            raise SegmentError(
                f"session {session_id!r}: {len(ordered)} of {count} segments were passed; read the whole trajectory"
            )
