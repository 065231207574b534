"""A store as one session uses it: every write is made under the session's fence.

Promise: after another sidecar has taken the session nothing is written here any more, and the first write that
finds that out says so to `on_fenced`, once. One event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sidecar.store.ownership import Fence
from sidecar.store.protocol import SessionRow, Store, StoreFenced
from sidecar.tito.records import StepRecord


class SessionStore:
    """`fence` is None for a session that is only read: a closed one, which no sidecar owns."""

    def __init__(self, store: Store, fence: Fence | None, on_fenced: Callable[[], None] = lambda: None) -> None:
        self._store = store
        self.fence = fence
        self.lapses = fence.lease.lapses if fence is not None else 0
        """See `HeldLease.lapses`: as of the last time that the session was known to be ours."""
        self._on_fenced = on_fenced
        self.lost: StoreFenced | None = None
        """Why nothing can be written any more, or None."""

    def lose(self, reason: StoreFenced) -> None:
        """Another sidecar has the session: refuse every write from now on."""
        if self.lost is None:
            self.lost = reason
            self._on_fenced()

    async def create_session(self, row: SessionRow) -> None:
        """Insert the session as its owner's. Raises `StoreFenced` if another sidecar was faster."""
        assert self.fence is not None
        with self._watched():
            await self._store.create_session(row, self.fence)

    async def save_session(self, row: SessionRow) -> None:
        """See `Store.save_session`."""
        with self._watched():
            await self._store.save_session(row, self.fence)

    async def save_step(self, step: StepRecord, blobs: Mapping[bytes, bytes]) -> None:
        """See `Store.save_step`."""
        with self._watched():
            await self._store.save_step(step, blobs, self.fence)

    def mark_delivered(self, session_id: str, step_id: str) -> None:
        """See `Store.mark_delivered`."""
        if self.lost is None:
            self._store.mark_delivered(session_id, step_id, self.fence)

    async def discard_session(self, row: SessionRow) -> int:
        """See `Store.discard_session`."""
        with self._watched():
            return await self._store.discard_session(row, self.fence)

    async def read_blobs(self, session_id: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """See `Store.read_blobs`. Blobs never change, whoever owns the session."""
        return await self._store.read_blobs(session_id, keys)

    def _watched(self) -> _Watch:
        if self.lost is not None:
            raise self.lost
        return _Watch(self)


class _Watch:
    """Notices `StoreFenced` on its way out."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, StoreFenced):
            self._store.lose(error)
