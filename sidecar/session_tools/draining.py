"""`sessions wait-drained`: until a sidecar may go without losing a trajectory. What a preStop hook calls where the
store goes with the pod.

Drained means: every finalized session has been read, none that has steps is open, and no call is in flight. Reads
the store and asks the control plane, again and again. One event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection, exists, func, select

from sidecar.store import open_store
from sidecar.store.protocol import Store
from sidecar.store.schema import session, step


@dataclass(frozen=True, slots=True)
class Left:
    """What still keeps the sidecar. `unread`: finalized sessions that nobody has drained; `open`: sessions with
    steps that nobody has finalized; `calls`: in flight."""

    unread: int
    open: int
    calls: int

    @property
    def nothing(self) -> bool:
        """It may go."""
        return not (self.unread or self.open or self.calls)

    def __str__(self) -> str:
        return f"{self.unread} finalized and unread, {self.open} open with steps, {self.calls} calls in flight"


async def wait_drained(
    url: str,
    calls: Callable[[], int],
    *,
    timeout: float,
    interval: float,
    ignore_open: bool,
    say: Callable[[str], None],
) -> bool:
    """Wait; False if `timeout` seconds were not enough. `calls` gives those in flight, and may raise. Raises
    `StoreError`."""
    deadline = time.monotonic() + timeout
    store = open_store(url, read_only=True)
    await store.start()
    told = ""
    try:
        while True:
            in_flight = await asyncio.to_thread(calls)  # first: what they commit is in the store by then
            left = await _left(store, in_flight, ignore_open)
            if left.nothing:
                return True
            if str(left) != told:
                told = str(left)
                say(f"waiting: {told}")
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            await asyncio.sleep(min(interval, remaining))
    finally:
        await store.close()


async def _left(store: Store, calls: int, ignore_open: bool) -> Left:
    def query(connection: Connection) -> tuple[int, int]:
        columns, count = session.c, select(func.count()).select_from(session)
        unread = count.where(columns.state == "finalized", columns.drained_at.is_(None))
        still_open = count.where(columns.state == "open", exists().where(step.c.session_id == columns.session_id))
        return connection.execute(unread).scalar_one(), connection.execute(still_open).scalar_one()

    unread, still_open = await store.query("count of sessions", query)
    return Left(unread, 0 if ignore_open else still_open, calls)
