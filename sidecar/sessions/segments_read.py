"""Reads the segments of a finalized session: its plans, and from the store what they refer to.

One event loop. The trajectory is final, so that rows of routing replay are packed in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from sidecar.sessions.export import NO_ROWS, message_keys, segment_json
from sidecar.sessions.routed_json import routed_json
from sidecar.sessions.session import Session
from sidecar.store.protocol import Store
from sidecar.tito.routed_rows import blob_keys
from sidecar.tito.segments import SegmentPlan


async def read_segments(store: Store, session: Session, plans: Sequence[SegmentPlan]) -> list[dict[str, Any]]:
    """The segments as `/trajectory/read` sends them, in order. Raises `StoreError`."""
    session_id = session.session_id
    keys = list(dict.fromkeys(key for plan in plans for key in message_keys(plan)))
    blobs = await store.read_blobs(session_id, keys)
    data = []
    for index, plan in enumerate(plans):
        routed: Mapping[str, Any] = NO_ROWS
        missing = 0
        if rows := blob_keys(plan.nodes):  # one segment's at a time: they are most of a trajectory's bytes
            routed, missing = await asyncio.to_thread(routed_json, plan, await store.read_blobs(session_id, rows))
        data.append(
            segment_json(
                session.row,
                session.trajectory,
                plan,
                index,
                len(plans),
                blobs,
                routed=routed,
                rows_missing=missing,
            )
        )
    return data
