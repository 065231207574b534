"""A session out of the store, beside a running sidecar: nothing is written, nothing is created. One event loop."""

from __future__ import annotations

from sidecar.store import open_store
from sidecar.store.protocol import StoredSession, StoreError
from sidecar.tito.trajectory import Trajectory


async def read_session(url: str, session_id: str) -> StoredSession:
    """The session as of now. Raises `StoreError`, also for an id that the store does not know."""
    store = open_store(url, read_only=True)
    await store.start()
    try:
        stored = await store.load_session(session_id)
    finally:
        await store.close()
    if stored is None:
        raise StoreError(f"session {session_id!r} is not in the store; check the id, --store and --state-dir")
    return stored


def trajectory_of(stored: StoredSession) -> Trajectory:
    """The forest of the session's final steps; detached ones wait for a retry and are left out."""
    trajectory = Trajectory()
    for record in stored.steps:
        if record.state != "detached":
            trajectory.add(record)
    return trajectory
