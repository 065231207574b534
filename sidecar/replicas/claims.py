"""Which sessions this sidecar may write, and which sidecars hold the others.

Promise: a session is written by the sidecar that claimed it last. `claim` takes what no live sidecar holds and says
who holds the rest. One event loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection

from sidecar.store.ownership import Fence, Found, HeldLease, OwnershipSql, held_elsewhere
from sidecar.store.protocol import LeaseLapsed, LeaseRow, SessionHeld, Store, StoreError

T = TypeVar("T")

log = logging.getLogger(__name__)

_OPEN = "open"
_REMEMBERED = 2.0
"""Seconds for which a session's holder is taken for granted, so that a forwarded call costs no query."""
_MOST_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Claimed:
    """A session that is there. `fence` is None if it is closed: nobody owns it, anybody reads it."""

    fence: Fence | None


class Claims:
    """Claims for one sidecar, whose lease somebody else renews."""

    def __init__(self, store: Store, lease: HeldLease) -> None:
        self._store = store
        self._lease = lease
        self._sql: OwnershipSql | None = None
        self._holders: dict[str, tuple[float, LeaseRow]] = {}

    @property
    def sidecar_id(self) -> str:
        """This sidecar's own id."""
        return self._lease.sidecar_id

    async def claim(self, session_id: str) -> Claimed | None:
        """Take an open session; None if there is none of that id. Taking it again, from oneself too, begins a new
        epoch. Raises `SessionHeld`, `StoreError`."""
        await self._lease.wait()
        found = await self._read(session_id, lambda sql, connection: sql.find(connection, session_id))
        if found is None:
            return None
        if found.state != _OPEN:
            return Claimed(None)
        if found.owner not in (None, self.sidecar_id) and found.seconds_left > 0:
            raise self._remember(held_elsewhere(session_id, found))
        fence = await self._take(session_id)
        if found.owner not in (None, self.sidecar_id):
            log.warning(
                "session taken over: session_id=%s epoch=%d from sidecar_id=%s",
                session_id, fence.epoch, found.owner,
            )  # fmt: skip
        return Claimed(fence)

    async def holds(self, fence: Fence) -> bool:
        """Whether the session is still this sidecar's, after a time without a lease. Raises `StoreError`."""
        await self._lease.wait()
        self._check_lease()
        session_id = fence.session_id
        found = await self._read(session_id, lambda sql, connection: sql.find(connection, session_id))
        return found is not None and (found.owner, found.epoch) == (self.sidecar_id, fence.epoch)

    async def claim_closed(self, session_id: str) -> Fence:
        """The right to change a session that is closed. Raises `StoreError`."""
        await self._lease.wait()
        return await self._take(session_id)

    async def give_up(self, fence: Fence) -> None:
        """Leave the session to whoever is asked for it next, unless it was claimed since. Raises `StoreError`."""
        await self._store.transact(
            f"hand-over of session {fence.session_id}",
            lambda connection: self._dialect(connection).give_up(
                connection, fence.session_id, self.sidecar_id, fence.epoch
            ),
        )

    async def _take(self, session_id: str) -> Fence:
        self._check_lease()

        def work(connection: Connection) -> int | Found | None:
            sql = self._dialect(connection)
            epoch = sql.claim(connection, session_id, self.sidecar_id)
            return epoch if epoch is not None else sql.find(connection, session_id)

        taken = await self._store.transact(f"claim of session {session_id}", work)
        if isinstance(taken, int):
            self.forget(session_id)
            return Fence(self._lease, session_id, taken)
        if taken is None:
            raise StoreError(f"session {session_id} was deleted a moment ago; try again")
        raise self._remember(held_elsewhere(session_id, taken))  # another sidecar was faster

    def new(self, session_id: str) -> Fence:
        """The fence of a session that is about to be created. Raises `LeaseLapsed`."""
        self._check_lease()
        return Fence(self._lease, session_id, 1)

    def remembered(self, session_id: str) -> LeaseRow | None:
        """Who held the session a moment ago, if it was another sidecar."""
        until, holder = self._holders.get(session_id, (0.0, None))
        return holder if holder is not None and time.monotonic() < until else None

    def forget(self, session_id: str) -> None:
        """The holder did not answer, or is not the holder any more."""
        self._holders.pop(session_id, None)

    async def seconds_left(self, sidecar_id: str) -> float:
        """Of another sidecar's lease; 0 or less if it is over. Raises `StoreError`."""
        return await self._read(sidecar_id, lambda sql, connection: sql.seconds_left(connection, sidecar_id))

    async def live(self) -> list[LeaseRow]:
        """The sidecars whose lease lasts, this one included. Raises `StoreError`."""
        return await self._read("leases", lambda sql, connection: sql.live(connection))

    async def owned(self) -> dict[str, int]:
        """The epochs of the open sessions that are this sidecar's. Raises `StoreError`."""
        return await self._read("owned", lambda sql, connection: sql.owned(connection, self.sidecar_id))

    def _remember(self, held: SessionHeld) -> SessionHeld:
        if len(self._holders) >= _MOST_REMEMBERED:
            self._holders.clear()
        until = time.monotonic() + min(_REMEMBERED, held.seconds_left)
        self._holders[held.session_id] = (until, held.holder)
        return held

    def _check_lease(self) -> None:
        if not self._lease.valid:
            raise LeaseLapsed("this sidecar's lease is over and not renewed yet; see the sidecar's log")

    async def _read(self, what: str, work: Callable[[OwnershipSql, Connection], T]) -> T:
        return await self._store.query(
            f"owner of {what}", lambda connection: work(self._dialect(connection), connection)
        )

    def _dialect(self, connection: Connection) -> OwnershipSql:
        if self._sql is None:
            self._sql = OwnershipSql(connection.dialect.name)
        return self._sql
