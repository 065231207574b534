"""Sidecars as the store sees them: a store, a lease and claims each, on one database. One event loop."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, field

from sidecar.replicas.claims import Claims
from sidecar.store.ownership import Fence, HeldLease, OwnershipSql
from sidecar.store.protocol import LeaseRow
from sidecar.store.sql import SqlStore
from tests.store.samples import session, step

FOREVER = 1e6
"""Seconds."""


@dataclass
class Rival:
    """One of them. Its lease is made and ended by hand."""

    store: SqlStore
    lease: HeldLease = field(default_factory=lambda: HeldLease(uuid.uuid4().hex))
    steps: int = 0

    def __post_init__(self) -> None:
        self.claims = Claims(self.store, self.lease)
        self.sql = OwnershipSql(self.store.backend.write_engine.dialect.name)

    async def live(self) -> None:
        """Make the lease, or renew it."""
        row = LeaseRow(self.lease.sidecar_id, "http://here", None, None)
        await self.store.transact("lease", lambda connection: self.sql.renew(connection, row, FOREVER))
        self.lease.renewed(time.monotonic(), FOREVER)

    async def lapse(self) -> None:
        """The lease runs out in the database; the rival itself does not know."""
        await self.store.transact("lease", lambda connection: self.sql.end(connection, self.lease.sidecar_id))

    async def take(self, session_id: str) -> Fence:
        """Claim a session, and load it."""
        claimed = await self.claims.claim(session_id)
        assert claimed is not None
        assert claimed.fence is not None
        return claimed.fence

    async def steps_of(self, session_id: str) -> set[str]:
        """The ids of the stored steps."""
        loaded = await self.store.load_session(session_id)
        assert loaded is not None
        return {record.step_id for record in loaded.steps}

    async def write(self, fence: Fence) -> str:
        """Write a step under a fence; its id tells the epoch."""
        self.steps += 1
        name = f"{fence.epoch}.{self.lease.sidecar_id}.{self.steps}"
        await self.store.save_step(step(fence.session_id, name, None), {}, fence)
        return name

    async def create(self, session_id: str) -> Fence:
        """Create a session as one's own."""
        fence = self.claims.new(session_id)
        await self.store.create_session(session(session_id, state="open"), fence)
        return fence


async def open_rivals(url: str, count: int) -> list[Rival]:
    """So many rivals with leases."""
    rivals = []
    for _ in range(count):
        store = SqlStore(url)
        await store.start()
        rivals.append(Rival(store))
    await asyncio.gather(*(rival.live() for rival in rivals))
    return rivals


async def close_rivals(rivals: list[Rival]) -> None:
    """Close their stores."""
    await asyncio.gather(*(rival.store.close() for rival in rivals))
