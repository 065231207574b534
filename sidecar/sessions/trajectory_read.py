"""`/trajectory/read`: which sessions a trainer gets, and the drain that gives them to it alone.

A drain is committed before the first byte of the reply leaves. What a lost reply held is read again by the same
`drain_id`, or with `include_drained`: the same bytes. Any replica answers; one event loop.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from sidecar.sessions.errors import session_closed
from sidecar.sessions.finalized import load_finalized
from sidecar.sessions.trajectory_body import TrajectoryBody
from sidecar.store.catalog import Group, GroupQuery, drain_groups, drain_session, find_groups
from sidecar.store.protocol import Store


@dataclass(frozen=True, slots=True)
class Drain:
    """Mark what is read as drained. A repeat with an equal `drain_id` gets what the first one got."""

    drain_id: str | None = None


class TrajectoryReader:
    """Reads finalized sessions out of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def session(self, session_id: str, drain: Drain | None, include_drained: bool) -> TrajectoryBody:
        """The reply for one session. Raises `RequestError` (404, 409), `StoreError`."""
        drained_at = (await load_finalized(self._store, session_id)).row.drained_at
        wanted = include_drained or drained_at is None
        if drain is not None:
            drained_at, ours = await self._store.transact(
                f"drain of session {session_id}",
                lambda connection: drain_session(connection, session_id, now=time.time(), drain_id=drain.drain_id),
            )
            if drained_at is None:
                raise session_closed(session_id, "expired")
            wanted = include_drained or ours
        fields = {"success": True, "drained": drained_at is not None}
        return TrajectoryBody(self._store, [session_id] if wanted else [], fields)

    async def groups(self, query: GroupQuery, drain: Drain | None) -> TrajectoryBody:
        """The reply for whole groups. Raises `StoreError`."""
        if drain is None:
            found = await self._store.query("groups", lambda connection: find_groups(connection, query))
        else:
            found = await self._store.transact(
                "drain of groups",
                lambda connection: drain_groups(connection, query, now=time.time(), drain_id=drain.drain_id),
            )
        fields = {
            "success": True,
            "drained": bool(found) and all(group.drained_at is not None for group in found),
            "groups": [_group_json(group) for group in found],
        }
        ids = [session_id for group in found for session_id in group.session_ids]
        return TrajectoryBody(self._store, ids, fields)


def _group_json(group: Group) -> dict[str, Any]:
    return {
        "instance_id": group.instance_id,
        "run_id": group.run_id,
        "session_ids": group.session_ids,
        "drained_at": group.drained_at,
    }
