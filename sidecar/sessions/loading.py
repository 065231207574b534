"""From the store into memory: open sessions with the right to write them, closed ones to be looked at.

Promise: an open session is claimed before it is read, so that what its last owner wrote is there and nothing is
added behind our back. One event loop; the registry sees to it that a session is loaded once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sidecar.generation.controller import Controller
from sidecar.replicas.claims import Claims
from sidecar.sessions.session import Session
from sidecar.sessions.step_counts import StepCounts
from sidecar.store.ownership import Fence
from sidecar.store.protocol import SessionRow, Store, StoredSession, StoreFenced
from sidecar.store.session_store import SessionStore
from sidecar.tito.model import Model


class Loader:
    """Makes sessions. `on_fenced` is told of those that another sidecar has taken, with the fence that fell."""

    def __init__(
        self,
        store: Store,
        claims: Claims,
        controller: Controller,
        model: Model,
        retry_window: float,
        on_fenced: Callable[[str, Fence | None], None],
    ) -> None:
        self._store = store
        self._claims = claims
        self._controller = controller
        self._model = model
        self._retry_window = retry_window
        self._on_fenced = on_fenced
        self.counts = StepCounts()
        """Of the sessions that this made."""

    async def load(self, session_id: str) -> Session | None:
        """The session of that id, or None if there is none. Raises `SessionHeld`, `StoreError`."""
        claimed = await self._claims.claim(session_id)
        stored = await self._store.load_session(session_id) if claimed is not None else None
        if claimed is None or stored is None:
            return None
        session = self._made(stored, claimed.fence)
        if session.open:
            await session.await_retries(self._retry_window)
        return session

    def new(self, row: SessionRow) -> Session:
        """A session that is not in the store yet. Raises `LeaseLapsed`."""
        return self._made(StoredSession(row), self._claims.new(row.session_id))

    async def still_ours(self, session: Session) -> bool:
        """Whether a session in memory may be used. It is asked for in the store only if this sidecar was without a
        lease since the last time; one that was taken is given up. Raises `StoreError`."""
        fence, store = session.store.fence, session.store
        if fence is None or (fence.lease.valid and store.lapses == fence.lease.lapses):
            return True
        lapses = fence.lease.lapses
        if not await self._claims.holds(fence):
            store.lose(StoreFenced(f"session {fence.session_id} was taken over while the lease was over"))
            return False
        store.lapses = lapses
        return True

    async def claim_closed(self, session: Session) -> None:
        """Get the right to change a session that is closed, unless it is there. Raises `StoreError`."""
        if session.store.fence is None:
            session.store.fence = await self._claims.claim_closed(session.session_id)

    async def give_up(self, session: Session) -> None:
        """Leave an open session to the sidecar that is asked for it next. Raises `StoreError`."""
        if session.store.fence is not None:
            await self._claims.give_up(session.store.fence)

    def _made(self, stored: StoredSession, fence: Fence | None) -> Session:
        # no reference to the session itself: one that is gone is freed without the garbage collector
        on_fenced = partial(self._on_fenced, stored.row.session_id, fence)
        store = SessionStore(self._store, fence, on_fenced)
        return Session(stored, store, self._controller, self._model, self.counts)
