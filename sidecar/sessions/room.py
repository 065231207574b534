"""Keeps the sessions of a process within their memory: back-pressure in the place of a crash.

Promise: a call is admitted only while all sessions together hold less than the limit; sessions in which nothing is
under way leave memory for it, those that were used longest ago first, and are read again when they are asked for.
One event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time

from sidecar.sessions.errors import unavailable
from sidecar.sessions.memory import SessionMemory
from sidecar.store.protocol import StoreError

log = logging.getLogger(__name__)

_ENOUGH = 0.9
"""Of the limit: what sessions hold after some have left, so that not every call sends one away."""
_FRESH_SECONDS = 0.2
"""How long a sum is taken for true: a thousand sessions are summed in a tenth of a millisecond."""


class Room:
    """`limit`: bytes; None for no limit."""

    def __init__(self, sessions: SessionMemory, limit: int | None) -> None:
        self._sessions = sessions
        self._limit = limit
        self._making = asyncio.Lock()
        self._held = 0
        self._summed_at = float("-inf")

    async def make(self) -> None:
        """Before a call. Raises `RequestError`: 503, which client libraries send again after a while, by when other
        calls have ended. A 413 or 400 would end the agent, and it is not its request that is too large; a 429
        would tell of a quota of its own, which there is none of."""
        if self._limit is None or self._sum() <= self._limit:
            return
        async with self._making:
            self._summed_at = float("-inf")
            if self._sum() > self._limit:
                await self._unload(self._limit)
        if self._held > self._limit:
            raise unavailable(
                f"running sessions hold {self._held} bytes, more than --max-total-bytes ({self._limit}); "
                "try again, run fewer agents at once, or raise the limit",
                "memory_full",
            )

    def _sum(self) -> int:
        now = time.monotonic()
        if now - self._summed_at >= _FRESH_SECONDS:
            self._held, self._summed_at = sum(one.size.held for one in self._sessions.values()), now
        return self._held

    async def _unload(self, limit: int) -> None:
        unloaded = 0
        for session in self._sessions.idle_since():
            if self._held <= _ENOUGH * limit:
                break
            try:
                await session.flush()
            except StoreError as error:
                log.warning("session stays in memory: session_id=%s: %s", session.session_id, error)
                continue
            if self._sessions.unload(session, 0):
                self._held -= session.size.held
                unloaded += 1
        log.info("sessions left memory for others: %d; %d bytes are held", unloaded, self._held)
