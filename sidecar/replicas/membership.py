"""This sidecar as one of those that share a store: its id, its lease, what it may claim.

Promise: the id is fresh with every start. `register` comes before the first call is served, `stop` after the last
write is stored. One event loop.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from sidecar.replicas.claims import Claims
from sidecar.replicas.forwarding import Forwarding
from sidecar.replicas.lease_keeper import Announced, LeaseKeeper
from sidecar.replicas.predecessor import StateDirLock
from sidecar.store.backends import locate
from sidecar.store.ownership import HeldLease
from sidecar.store.protocol import Store, StoreError

log = logging.getLogger(__name__)

_LOCK_FILE = "sidecar-id"


class Membership:
    """`store_url` names the shared store, `secret` is the session secret that all share. `lease_seconds` is how
    long others wait for a sidecar that is gone.

    Whoever has the lock of `state_dir` knows that the sidecar that had it before is gone, and need not wait."""

    def __init__(self, store: Store, store_url: str, state_dir: Path, secret: bytes, lease_seconds: float) -> None:
        third = lease_seconds / 3
        self.lease = HeldLease(uuid.uuid4().hex)
        self.claims = Claims(store, self.lease)
        self.forwarding = Forwarding(self.claims, secret, lease_seconds)
        self.predecessor: str | None = None
        """The sidecar that had this state directory before, and is gone; None if that is not certain."""
        self._lock = StateDirLock(state_dir / _LOCK_FILE)
        opened = partial(locate, store_url, busy_timeout=third, timeout=third)
        self._keeper = LeaseKeeper(self.lease, lambda: opened().open(), lease_seconds)
        self._comparing: asyncio.Task[None] | None = None

    @property
    def problem(self) -> str | None:
        """Why this sidecar may soon not write, or None."""
        return self._keeper.problem

    async def register(self, url: str, control_url: str, compare: Callable[[Mapping[str, int]], None]) -> None:
        """Make the lease; the others reach this sidecar at these URLs.

        `compare` is given the epochs of this sidecar's open sessions after a time without a lease. Raises
        `StoreError`, `OSError`."""
        self.predecessor = self._lock.acquire()
        self._keeper.on_lapse_over = partial(self._compare_later, compare)
        await self._keeper.start(Announced(url, control_url, self.predecessor))
        self._lock.write(self.lease.sidecar_id)
        log.info("replica: sidecar_id=%s url=%s control_url=%s", self.lease.sidecar_id, url, control_url)

    async def stop(self) -> None:
        """Release the lease, the sessions and the state directory."""
        if self._comparing is not None:
            self._comparing.cancel()
        await self.forwarding.close()
        await self._keeper.stop()
        self._lock.release()

    def _compare_later(self, compare: Callable[[Mapping[str, int]], None]) -> None:
        if self._comparing is None or self._comparing.done():
            self._comparing = asyncio.get_running_loop().create_task(self._compare(compare))

    async def _compare(self, compare: Callable[[Mapping[str, int]], None]) -> None:
        while True:
            try:
                compare(await self.claims.owned())
                return
            except StoreError as error:  # sessions that were taken refuse their next write anyway
                log.warning("which sessions were lost is not known yet: %s", error)
                await asyncio.sleep(1)
