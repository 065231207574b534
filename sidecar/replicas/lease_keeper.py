"""Keeps this sidecar's lease: a thread that renews it every third of its length, on a connection of its own.

Promise: a busy event loop does not lose the lease; a process that is stopped does, and so does one whose event
loop has not answered for `_STUCK` leases: it serves nobody. `HeldLease.deadline` is never later than the lease's
end in the database. `start`, `stop` and the callbacks belong to the sidecar's event loop; the rest runs in the
thread, in an event loop of its own.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import Connection

from sidecar.store.backend import Backend
from sidecar.store.ownership import HeldLease, OwnershipSql
from sidecar.store.protocol import LeaseRow, StoreError

log = logging.getLogger(__name__)

_STUCK = 6
_SHORTEST_PAUSE = 0.05
_ATTEMPTS = 3
"""To register, each of which waits for locks and for a server that is away."""


@dataclass(frozen=True, slots=True)
class Announced:
    """What the lease row says of this sidecar, and whose lease it ends: that of a predecessor known to be gone."""

    url: str
    control_url: str
    predecessor: str | None = None


class LeaseKeeper:
    """`open_backend` connects to the shared store; called in the thread. `seconds` is the lease's length."""

    def __init__(self, lease: HeldLease, open_backend: Callable[[], Backend], seconds: float) -> None:
        self._lease = lease
        self._open_backend = open_backend
        self._seconds = seconds
        self._thread: threading.Thread | None = None
        self._stop: Callable[[], object] = lambda: None
        self._stopping = False
        self._heard = 0.0
        """When the sidecar's event loop last answered, on the monotonic clock."""
        self._lapsed = False
        self.problem: str | None = None
        """Why the lease cannot be renewed at present, or None."""
        self.on_lapse_over: Callable[[], None] = lambda: None
        """Called in the sidecar's loop when a lease that had run out is renewed: others may have taken sessions."""

    async def start(self, announced: Announced) -> None:
        """Register. Raises `StoreError` if the store cannot be written."""
        self._heard = time.monotonic()
        registered: Future[None] = Future()
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(announced, registered, loop)), name="lease-keeper", daemon=True
        )
        self._thread.start()
        await asyncio.wrap_future(registered)

    async def stop(self) -> None:
        """Release the lease and the sessions that are held under it. Safe to call again."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping = True
            with suppress(RuntimeError):  # its loop is closed: the thread has ended by itself
                self._stop()
            await asyncio.to_thread(thread.join)
            self._lease.deadline = -1.0

    async def _run(self, announced: Announced, registered: Future[None], loop: asyncio.AbstractEventLoop) -> None:
        stop, here = asyncio.Event(), asyncio.get_running_loop()
        self._stop = lambda: here.call_soon_threadsafe(stop.set)
        try:
            backend = self._open_backend()
            sql = OwnershipSql(backend.write_engine.dialect.name)
            try:
                await self._register(backend, sql, announced, registered)
                while not stop.is_set():
                    self._ask(loop)
                    await _until(stop, self._pause())
                    if not stop.is_set():
                        await self._renew(backend, sql, announced, loop)
                await self._release(backend, sql)
            finally:
                await backend.dispose()
        except BaseException as error:
            self.problem = f"the thread that renews the lease has ended: {error}"
            if not registered.done():
                registered.set_exception(error)
            else:
                log.exception("the lease is renewed no longer")

    async def _register(
        self, backend: Backend, sql: OwnershipSql, announced: Announced, registered: Future[None]
    ) -> None:
        def work(connection: Connection) -> None:
            if announced.predecessor is not None:
                sql.end(connection, announced.predecessor)
            sql.forget_old(connection)
            self._write(connection, sql, announced)

        for attempt in range(1, _ATTEMPTS + 1):
            try:
                await self._renewed(backend, work)
            except Exception as error:
                if attempt == _ATTEMPTS:
                    raise StoreError(f"no lease: {backend.describe(error).message}") from error
            else:
                break
        registered.set_result(None)

    def _write(self, connection: Connection, sql: OwnershipSql, announced: Announced) -> None:
        row = LeaseRow(self._lease.sidecar_id, announced.url, announced.control_url, None)
        sql.renew(connection, row, self._seconds)

    async def _renewed(self, backend: Backend, work: Callable[[Connection], None]) -> None:
        sent = time.monotonic()
        await backend.write(work)
        self._lease.renewed(sent, self._seconds)

    async def _renew(
        self, backend: Backend, sql: OwnershipSql, announced: Announced, loop: asyncio.AbstractEventLoop
    ) -> None:
        silent = time.monotonic() - self._heard
        if silent > _STUCK * self._seconds:
            self._note(f"the event loop has not answered for {silent:.0f} s")
            return
        try:
            await self._renewed(backend, lambda connection: self._write(connection, sql, announced))
        except Exception as error:
            self._note(backend.describe(error).message)
            return
        if self.problem is not None:
            log.info("the lease is renewed again: sidecar_id=%s", self._lease.sidecar_id)
            self.problem = None
        if self._lapsed:
            self._lapsed = False
            self._call(loop, self.on_lapse_over)

    def _note(self, problem: str) -> None:
        if self.problem is None:
            log.error("the lease cannot be renewed: sidecar_id=%s: %s", self._lease.sidecar_id, problem)
        self.problem = problem

    def _pause(self) -> float:
        """Seconds to the next renewal: soon after one that failed."""
        third = self._seconds / 3
        if not self._lease.valid:
            self._lapsed = True
        return max(_SHORTEST_PAUSE, min(0.5, third / 3)) if self.problem is not None else third

    async def _release(self, backend: Backend, sql: OwnershipSql) -> None:
        try:
            await backend.write(lambda connection: sql.release(connection, self._lease.sidecar_id))
        except Exception as error:
            log.warning(
                "the lease is not released and ends by itself: sidecar_id=%s: %s",
                self._lease.sidecar_id, backend.describe(error).message,
            )  # fmt: skip

    def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the sidecar's event loop show that it goes round."""

        def answer() -> None:
            self._heard = time.monotonic()

        self._call(loop, answer)

    def _call(self, loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
        if not loop.is_closed() and not self._stopping:
            loop.call_soon_threadsafe(work)


async def _until(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass
