"""Routing replay: a segment's rows as the trainer reads them in JSON. Pure; called in a thread, for rows are large.

Expert ids are most of a trajectory: as JSON numbers they would be four times their size and millions of objects, so
they travel as `{"dtype", "shape", "data"}`, `data` being base64 of the little-endian array in C order.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from typing import Any

import orjson

from sidecar.tito.routed_rows import segment_rows
from sidecar.tito.segments import SegmentPlan

_SLICE = 3 * 2**18
"""Bytes encoded at once, after which other threads may run; a multiple of three, so that pieces can be joined."""


def routed_json(plan: SegmentPlan, blobs: Mapping[bytes, bytes]) -> tuple[dict[str, Any], int]:
    """`{"routed_experts": ...}`, empty where the segment has no rows that can be replayed, and how many of its last
    rows are no engine's (`SegmentRows.missing`)."""
    rows = segment_rows(plan.nodes, plan.trained, blobs)
    if rows is None:
        return {}, 0
    raw = memoryview(rows.experts).cast("B") if rows.experts.size else memoryview(b"")
    pieces = [binascii.b2a_base64(raw[at : at + _SLICE], newline=False) for at in range(0, len(raw), _SLICE)]
    packed = {
        "dtype": rows.experts.dtype.name,
        "shape": list(rows.experts.shape),
        "data": orjson.Fragment(b'"' + b"".join(pieces) + b'"'),
    }
    return {"routed_experts": packed}, rows.missing
