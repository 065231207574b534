"""What becomes of sessions that nobody uses: they leave memory, then they expire, then their tombstones go.

Promise: a session that is unloaded goes on token-exact when its next call comes. What expires unread is never gone
in silence: it is counted, and a warning names it. Any number of replicas may do this on one store. One task of one
event loop; the store sees short transactions between those of its writer.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection

from sidecar.sessions.registry import Registry
from sidecar.store import expiry
from sidecar.store.expiry import Expired
from sidecar.store.protocol import Store, StoreError

log = logging.getLogger(__name__)

_LONGEST_PAUSE = 60.0
_PATIENCE = 3600.0
_AT_ONCE = 100
"""Sessions per round of a sweep."""
_MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """Seconds. `retention` None: nothing ever expires."""

    retention: float | None
    session_timeout: float
    tombstones: float

    @property
    def unused_seconds(self) -> float:
        """After which a session leaves memory, for what is in memory does not expire."""
        return self.session_timeout if self.retention is None else min(self.session_timeout, self.retention)

    @property
    def patience(self) -> float:
        """After a start, before what nobody has read expires: a sidecar may have been stopped for longer than
        `retention`, and so may have been its readers."""
        return 0.0 if self.retention is None else min(self.retention, _PATIENCE)

    @property
    def pause(self) -> float:
        """Between two sweeps: a tenth of the shortest time, a minute at most."""
        times = [seconds for seconds in (self.retention, self.session_timeout, self.tombstones) if seconds]
        return min(_LONGEST_PAUSE, max(1.0, min(times, default=_LONGEST_PAUSE) / 10))


@dataclass(slots=True)
class RetentionTotals:
    """What this process did since it started. `expired` counts all, `expired_unread` finalized sessions that nobody
    had drained, `expired_open` sessions that nobody had finalized."""

    unloaded: int = 0
    expired: int = 0
    expired_unread: int = 0
    expired_open: int = 0
    tombstones_forgotten: int = 0


class Retention:
    """Sweeps until it is cancelled."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        rules: RetentionRules,
        sidecar_id: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`sidecar_id`: under which this process owns sessions. `clock`: Unix seconds."""
        self._store, self._registry, self._rules = store, registry, rules
        self._sidecar_id, self._clock = sidecar_id, clock
        self.totals = RetentionTotals()
        self._patient_until = self._clock() + rules.patience
        self._warned = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to sweep, in a task of the running loop."""
        self._task = asyncio.get_running_loop().create_task(self.run(), name="retention")

    async def stop(self) -> None:
        """Sweep no more. What a sweep was doing is whole or left to the next process."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def run(self) -> None:
        """Sweep again and again; an error is logged, and the next sweep tries again."""
        while True:
            # replicas that started together do not sweep together for ever
            await asyncio.sleep(self._rules.pause * random.uniform(0.8, 1.2))
            try:
                await self.sweep()
            except StoreError as error:
                log.warning("retention: the store failed, the next sweep tries again: %s", error)
            except Exception:
                log.exception("retention: a sweep failed")

    async def sweep(self) -> None:
        """Do what is due. Raises `StoreError`."""
        if self._store.failure() is not None:
            return  # what is in memory may be newer than what is stored
        self.totals.unloaded += await self._registry.memory.unload_unused(self._rules.unused_seconds)
        for session_id in await self._store.query(
            "unfinished tombstones", partial(expiry.unfinished, limit=_AT_ONCE)
        ):
            await self._clear(session_id)
        await self._expire_due()
        await self._forget()

    async def _expire_due(self) -> None:
        if self._rules.retention is None:
            return
        before = self._clock() - self._rules.retention
        patient = self._clock() < self._patient_until
        if patient:
            await self._warn(before)
        dropped: list[Expired] = []
        after: tuple[float, str] | None = None
        try:
            while page := await self._store.query(
                "sessions that expire",
                partial(expiry.due, before=before, after=after, limit=_AT_ONCE, drained_only=patient),
            ):
                for one in page:
                    after = one  # those that are used, here or by other replicas, are not looked at again
                    if (expired := await self._expire(one[1], before)) is not None:
                        dropped.append(expired)
        finally:
            self._tell(dropped)

    async def _warn(self, before: float) -> None:
        """Once after a start: what has to be read now or never."""
        if self._warned:
            return
        self._warned = True
        if unread := await self._store.query("unread sessions", partial(expiry.count_unread, before=before)):
            log.warning(
                "%d finalized trajectories are older than --retention and unread: they expire in %.0f s unless "
                "they are read, or the sidecar is started with a longer --retention",
                unread,
                self._rules.patience,
            )

    async def _expire(self, session_id: str, before: float) -> Expired | None:
        now = self._clock()

        def work(connection: Connection) -> tuple[Expired | None, bool]:
            expired = expiry.expire(connection, session_id, before=before, now=now, sidecar_id=self._sidecar_id)
            return expired, expired is None or expiry.clear(connection, session_id, now=now)

        def take() -> Coroutine[Any, Any, tuple[Expired | None, bool]]:
            return self._store.transact(f"expiry of session {session_id}", work)

        expired, cleared = await self._registry.while_unloaded(session_id, take) or (None, True)
        if expired is not None:
            self.totals.expired += 1
            self.totals.expired_unread += expired.unread
            self.totals.expired_open += expired.was == "open"
        if not cleared:
            await self._clear(session_id)
        return expired

    async def _clear(self, session_id: str) -> None:
        portion = partial(expiry.clear, session_id=session_id, now=self._clock())
        done = False
        while not done:
            done = await self._store.transact(f"clearing of session {session_id}", portion)

    async def _forget(self) -> None:
        before = self._clock() - self._rules.tombstones
        forgotten = _AT_ONCE
        while forgotten == _AT_ONCE:
            forgotten = await self._store.transact(
                "end of tombstones", partial(expiry.forget, before=before, limit=_AT_ONCE)
            )
            self.totals.tombstones_forgotten += forgotten

    def _tell(self, dropped: list[Expired]) -> None:
        unread = [one.session_id for one in dropped if one.unread]
        unfinished = [one.session_id for one in dropped if one.was == "open"]
        read = len(dropped) - len(unread) - len(unfinished)
        if unread:
            log.warning(
                "retention dropped %d finalized trajectories that nobody had read: %s; read them sooner, or raise "
                "--retention",
                len(unread),
                _named(unread),
            )
        if unfinished:
            log.warning(
                "retention dropped %d sessions that nobody finalized: %s", len(unfinished), _named(unfinished)
            )
        if read:
            log.info("retention dropped %d trajectories that had been read", read)


def _named(session_ids: list[str]) -> str:
    more = len(session_ids) - _MOST_NAMED
    return ", ".join(session_ids[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
