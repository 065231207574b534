"""Who may write a session: leases of sidecars, owners and epochs of sessions, in SQL.

Promise: a sidecar has one lease, which it renews; a session has an owner and an epoch, which every take-over
increments. A write made under a `Fence` happens only while the session's row has that owner and epoch and the
owner's lease lasts, on the database's clock; the row stays locked until the write is committed, so that a take-over
comes wholly before or wholly after it. Functions run inside a transaction of the caller, in any thread; a
`HeldLease` is written by the thread that renews it and read by all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, text

from sidecar.store.protocol import LeaseLapsed, LeaseRow, SessionHeld, StoreError, StoreFenced

_FORGET_SECONDS = 3600
"""How long the row of a lease that ran out is kept for those who look for the reason."""

_RENEWAL_SECONDS = 1.0

_NOW = {
    # `unixepoch('subsec')` needs SQLite 3.42, and Python comes with older ones; to a millisecond.
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
    # not now(): that is when the transaction began
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) AS double precision)",
}
_CHECK = {
    # inside BEGIN IMMEDIATE: nobody else writes until it ends
    "sqlite": "FROM json_each(:ids) AS asked CROSS JOIN session ON session.session_id = asked.value "
    "WHERE session.owner = :me AND EXISTS (SELECT 1 FROM lease WHERE sidecar_id = :me AND expires_at > {now})",
    "postgresql": "FROM session WHERE session.session_id = ANY(:ids) AND session.owner = :me "
    "AND EXISTS (SELECT 1 FROM lease WHERE sidecar_id = :me AND expires_at > {now}) FOR NO KEY UPDATE OF session",
}


def now_sql(dialect: str) -> str:
    """The database's clock in Unix seconds, as an SQL expression."""
    return _NOW[dialect]


class HeldLease:
    """This process's own lease. `deadline` is when it ends here, on the monotonic clock: counted from before the
    renewal was sent, so never later than in the database."""

    def __init__(self, sidecar_id: str) -> None:
        self.sidecar_id = sidecar_id
        self.deadline = -1.0
        self.lapses = 0
        """How often it was over before it was renewed: sessions may have been taken each time."""

    def renewed(self, sent: float, seconds: float) -> None:
        """It was made or renewed by what was sent at `sent`."""
        self.lapses += not self.valid
        self.deadline = sent + seconds

    @property
    def valid(self) -> bool:
        """It lasts, as far as this process knows."""
        return time.monotonic() < self.deadline

    async def wait(self) -> None:
        """Give a lease that is over the time of a renewal, so that a database which was away for long, or a process
        that was stopped, costs no reply if nobody has taken the session."""
        until = time.monotonic() + _RENEWAL_SECONDS
        while not self.valid and time.monotonic() < until:  # noqa: ASYNC110 - another thread renews it
            await asyncio.sleep(0.05)


@dataclass(frozen=True, slots=True)
class Fence:
    """The right to write a session: it ends when another sidecar takes the session."""

    lease: HeldLease
    session_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Found:
    """A session's row as far as ownership goes."""

    state: str
    owner: str | None
    epoch: int
    url: str | None
    control_url: str | None
    seconds_left: float
    """Of the owner's lease; 0 or less if it is over."""


class OwnershipSql:
    """The statements of one SQL dialect, `sqlite` or `postgresql`, built once."""

    def __init__(self, dialect: str) -> None:
        now = _NOW[dialect]
        self._sqlite = dialect == "sqlite"
        self._check = text(f"SELECT session.session_id, session.epoch {_CHECK[dialect].format(now=now)}")
        self._left = text(f"SELECT expires_at - {now} FROM lease WHERE sidecar_id = :id")
        self._renew = text(
            f"INSERT INTO lease (sidecar_id, url, control_url, expires_at) "
            f"VALUES (:id, :url, :control_url, {now} + :seconds) ON CONFLICT (sidecar_id) DO UPDATE "
            "SET url = excluded.url, control_url = excluded.control_url, expires_at = excluded.expires_at"
        )
        self._forget = text(f"DELETE FROM lease WHERE expires_at < {now} - {_FORGET_SECONDS}")
        self._end = text("DELETE FROM lease WHERE sidecar_id = :id")
        self._release = text("UPDATE session SET owner = NULL WHERE owner = :id AND state = 'open'")
        self._live = text(
            f"SELECT sidecar_id, url, control_url, expires_at FROM lease WHERE expires_at > {now} "
            "ORDER BY sidecar_id"
        )
        self._find = text(
            "SELECT session.state, session.owner, session.epoch, lease.url, lease.control_url, "
            f"lease.expires_at - {now} AS seconds_left FROM session "
            "LEFT JOIN lease ON lease.sidecar_id = session.owner WHERE session.session_id = :session_id"
        )
        self._claim = text(
            "UPDATE session SET owner = :me, epoch = coalesce(epoch, 0) + 1 "
            "WHERE session_id = :session_id AND (owner IS NULL OR owner = :me OR state <> 'open' OR NOT EXISTS "
            f"(SELECT 1 FROM lease WHERE sidecar_id = session.owner AND expires_at > {now})) RETURNING epoch"
        )
        self._give_up = text(
            "UPDATE session SET owner = NULL "
            "WHERE session_id = :session_id AND owner = :me AND epoch = :epoch AND state = 'open'"
        )
        self._owned = text("SELECT session_id, epoch FROM session WHERE owner = :me AND state = 'open'")

    def renew(self, connection: Connection, sidecar: LeaseRow, seconds: float) -> None:
        """Make or renew a lease: it lasts `seconds` from now."""
        row = {"id": sidecar.sidecar_id, "url": sidecar.url, "control_url": sidecar.control_url}
        connection.execute(self._renew, {**row, "seconds": seconds})

    def forget_old(self, connection: Connection) -> None:
        """Delete leases that ran out long ago."""
        connection.execute(self._forget)

    def end(self, connection: Connection, sidecar_id: str) -> None:
        """End a lease now: of a process that is known to be gone. Its sessions may be taken at once."""
        connection.execute(self._end, {"id": sidecar_id})

    def release(self, connection: Connection, sidecar_id: str) -> None:
        """Give up a lease and the open sessions held under it."""
        connection.execute(self._release, {"id": sidecar_id})
        connection.execute(self._end, {"id": sidecar_id})

    def live(self, connection: Connection) -> list[LeaseRow]:
        """The leases that last, by sidecar id."""
        return [LeaseRow(*row) for row in connection.execute(self._live)]

    def seconds_left(self, connection: Connection, sidecar_id: str) -> float:
        """Of a lease; 0 or less if it is over or there is none."""
        found = connection.execute(self._left, {"id": sidecar_id}).scalar_one_or_none()
        return -1.0 if found is None else float(found)

    def find(self, connection: Connection, session_id: str) -> Found | None:
        """Who has a session; None if there is no such session."""
        row = connection.execute(self._find, {"session_id": session_id}).mappings().first()
        if row is None:
            return None
        left = row["seconds_left"]
        return Found(**{**row, "epoch": row["epoch"] or 0, "seconds_left": -1.0 if left is None else float(left)})

    def claim(self, connection: Connection, session_id: str, sidecar_id: str) -> int | None:
        """Take a session that nobody else holds: its new epoch, or None if it is held or not there. Held is an open
        session whose owner has a lease that lasts."""
        found: Any = connection.execute(self._claim, {"session_id": session_id, "me": sidecar_id})
        epoch: int | None = found.scalar_one_or_none()
        return epoch

    def give_up(self, connection: Connection, session_id: str, sidecar_id: str, epoch: int) -> None:
        """Leave a session to whoever claims it next, unless it was claimed since."""
        connection.execute(self._give_up, {"session_id": session_id, "me": sidecar_id, "epoch": epoch})

    def owned(self, connection: Connection, sidecar_id: str) -> dict[str, int]:
        """The open sessions of a sidecar with their epochs."""
        return {row.session_id: row.epoch for row in connection.execute(self._owned, {"me": sidecar_id})}

    def refusals(self, connection: Connection, fences: Iterable[Fence]) -> dict[Fence, StoreError]:
        """Those of the fences that forbid to write in this transaction, with the reason. The sessions of the others
        stay locked until its end."""
        refused: dict[Fence, StoreError] = {}
        by_lease: dict[HeldLease, list[Fence]] = {}
        for fence in set(fences):
            by_lease.setdefault(fence.lease, []).append(fence)
        for lease, asked in by_lease.items():
            held = self._held(connection, lease, asked) if lease.valid else {}
            for fence in asked:
                if held.get(fence.session_id) != fence.epoch:
                    refused[fence] = self._reason(connection, fence)
        return refused

    def _held(self, connection: Connection, lease: HeldLease, asked: list[Fence]) -> dict[str, int]:
        ids = [fence.session_id for fence in asked]
        given = orjson.dumps(ids).decode() if self._sqlite else ids
        rows = connection.execute(self._check, {"ids": given, "me": lease.sidecar_id})
        return {row.session_id: row.epoch for row in rows}

    def _reason(self, connection: Connection, fence: Fence) -> StoreError:
        found = self.find(connection, fence.session_id)
        if found is not None and (found.owner, found.epoch) == (fence.lease.sidecar_id, fence.epoch):
            return LeaseLapsed(
                f"session {fence.session_id}: the lease of this sidecar ran out before it could be renewed; "
                "nothing is written until it is"
            )
        return StoreFenced(
            f"session {fence.session_id} was taken over by sidecar {found.owner if found else None} "
            f"in epoch {found.epoch if found else None}; this one had epoch {fence.epoch}"
        )


async def wait_for_lease(fences: Iterable[Fence | None]) -> None:
    """Before a transaction: see `HeldLease.wait`."""
    for lease in {fence.lease for fence in fences if fence is not None}:
        await lease.wait()


def held_elsewhere(session_id: str, found: Found) -> SessionHeld:
    """The error of a session that another sidecar holds."""
    assert found.owner is not None
    holder = LeaseRow(found.owner, found.url, found.control_url, None)
    return SessionHeld(session_id, holder, found.seconds_left)
