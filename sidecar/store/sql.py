"""The store over SQL: the Protocol's methods on one grouped writer and a few read connections.

Promise: what `sidecar.store.protocol.Store` says. Use from one event loop, by any number of tasks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ParamSpec, TypeVar

from sqlalchemy import Connection, func, select

from sidecar.store import rows, schema, version, writes
from sidecar.store.backend import Backend, Fault
from sidecar.store.backends import locate
from sidecar.store.checksum import check_blob
from sidecar.store.ownership import Fence, wait_for_lease
from sidecar.store.packed import Packer
from sidecar.store.protocol import PauseRow, SessionRow, StoredSession, StoreError
from sidecar.store.queries import BLOB_BYTES, SESSION, blobs_of, steps_of
from sidecar.store.write_totals import WriteTotals
from sidecar.store.writer import GroupedWriter, WriterLimits
from sidecar.tito.records import StepRecord

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_StoredBlob = tuple[bytes, str | None]
"""Data and checksum."""

_KEYS_PER_QUERY = 1000

_LARGE = 256 << 10
"""Bytes that are packed and unpacked in a thread: more of them would hold up the event loop for a millisecond."""


class SqlStore:
    """A `Store` in a SQLite file or a PostgreSQL database."""

    def __init__(
        self,
        url: str,
        *,
        limits: WriterLimits | None = None,
        busy_timeout: float = 5.0,
        timeout: float = 10.0,
        read_only: bool = False,
    ) -> None:
        """`url`: `sqlite:///PATH` (relative), `sqlite:////PATH` (absolute) or `postgresql://...`; see `locate`,
        also for `busy_timeout` and `timeout`. `read_only`: `start` only opens what is there, and every write is
        refused. Raises `StoreError` for other URLs."""
        self._location = locate(url, busy_timeout=busy_timeout, timeout=timeout)
        self._limits = limits or WriterLimits()
        self._packer = Packer()
        self._read_only = read_only
        self._backend: Backend | None = None
        self._writer: GroupedWriter | None = None
        self._minor = schema.SCHEMA_MINOR
        self._damage: str | None = None

    @property
    def backend(self) -> Backend:
        """The opened database. A seam for tests, which count its commits and limit its pages. Raises `StoreError`
        before `start`."""
        if self._backend is None:
            raise StoreError(f"store {self._location.place} is not open; call start() first")
        return self._backend

    async def start(self) -> None:
        """Open or create the database. Raises `StoreError`, `StoreVersionError` on a newer one."""
        if self._backend is not None:
            raise StoreError(f"store {self._location.place} is already open; make another one or close it first")
        backend, place = self._location.open(), self._location.place
        try:
            await backend.prepare(self._read_only)
            if self._read_only:
                self._minor = await backend.read(partial(version.check, place))
            else:
                await backend.write(partial(version.create_or_upgrade, place))
        except BaseException as error:
            await backend.dispose()
            if isinstance(error, StoreError) or not isinstance(error, Exception):
                raise
            raise StoreError(f"store {backend.describe(error).message}") from error
        self._backend = backend
        if self._read_only:
            return
        statements = writes.Statements(backend.write_engine.dialect.name)
        self._writer = GroupedWriter(
            partial(_commit, backend, statements), partial(_probe, backend), self._describe, self._limits
        )
        self._writer.start()

    async def close(self) -> None:
        """Write what is queued, then close. Safe to call again."""
        writer, backend = self._writer, self._backend
        if writer is not None and backend is not None:
            await writer.close()
        if backend is not None:
            self._backend = None
            await backend.dispose()

    def failure(self) -> str | None:
        """Why the store cannot write at present, or None. Clears itself: a trial write is made every second. Damage
        lasts, though a trial write may succeed beside it."""
        return self._no_writer() if self._writer is None else self._writer.failure() or self._damage

    def totals(self) -> WriteTotals:
        """What this process wrote since it started."""
        return WriteTotals() if self._writer is None else self._writer.totals()

    async def save_session(self, row: SessionRow, fence: Fence | None = None) -> None:
        """Insert or replace a session's row."""
        await self._write(f"session {row.session_id}", writes.session_write, row, fence)

    async def create_session(self, row: SessionRow, fence: Fence) -> None:
        """Insert a session that the fence's sidecar owns. Raises `StoreFenced` if another one was faster."""
        await self._write(f"session {row.session_id}", writes.create_write, row, fence)

    async def save_step(self, step: StepRecord, blobs: Mapping[bytes, bytes], fence: Fence | None = None) -> None:
        """Insert or replace a step by its id, and the blobs the session lacks.

        Raises `StoreError` when the session was never saved or another step has the sequence number."""
        what = f"step {step.step_id} of session {step.session_id}"
        if step.context_ids.nbytes + sum(map(len, blobs.values())) > _LARGE:
            large = partial(writes.step_write, Packer(), step, blobs, fence)
            await self._submit(what, await asyncio.to_thread(_built, what, large))
        else:
            await self._write(what, writes.step_write, self._packer, step, blobs, fence)

    def mark_delivered(self, session_id: str, step_id: str, fence: Fence | None = None) -> None:
        """Set `delivered` in a later group commit; an unknown step is ignored."""
        write = writes.delivered_write(session_id, step_id, fence)
        if self._writer is None:
            log.warning("%s was not stored: %s", write.what, self._no_writer())
        else:
            self._writer.post(write)

    async def discard_session(self, row: SessionRow, fence: Fence | None = None) -> int:
        """Save `row` as a tombstone and delete the session's steps and blobs; the number of steps deleted."""
        done = await self._write(f"discard of session {row.session_id}", writes.discard_write, row, fence)
        return done.deleted

    async def save_pause(self, pause: PauseRow) -> None:
        """Insert or replace a pause."""
        await self._write(f"pause {pause.pause_id}", writes.pause_write, pause)

    async def delete_pauses(self, pause_ids: Sequence[str]) -> None:
        """Forget pauses; unknown ids are ignored."""
        await self._write("deletion of pauses", writes.delete_pauses_write, pause_ids)

    async def load_session(self, session_id: str) -> StoredSession | None:
        """The session with all its steps, as of one moment, or None for an id never seen."""

        def query(connection: Connection) -> tuple[Any, Sequence[Any], int]:
            at = {"in_session": session_id}
            found = connection.execute(SESSION, at).mappings().first()
            if found is None or found["state"] in ("discarded", "expired"):
                return found, [], 0  # what a tombstone still has is being deleted, and no whole
            return (
                found,
                connection.execute(steps, at).mappings().all(),
                connection.execute(BLOB_BYTES, at).scalar_one(),
            )

        what = f"session {session_id}"
        steps = steps_of(self._minor)
        found, step_rows, blob_bytes = await self._read(what, query)
        if found is None:
            return None
        try:
            records = [rows.step_record(step, self._packer) for step in step_rows]
            return StoredSession(rows.session_record(found), records, int(blob_bytes))
        except (ValueError, TypeError, LookupError) as error:
            raise StoreError(f"{what}: a stored row cannot be read ({error}); restore a copy") from error

    async def read_blobs(self, session_id: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The blobs of a session by key. Raises `StoreError` if one is missing."""
        wanted = list(dict.fromkeys(keys))
        blobs = blobs_of(self.backend.write_engine.dialect.name, self._minor)

        def query(connection: Connection) -> dict[bytes, _StoredBlob]:
            found: dict[bytes, _StoredBlob] = {}
            for at in range(0, len(wanted), _KEYS_PER_QUERY):
                part = {"in_session": session_id, "keys": wanted[at : at + _KEYS_PER_QUERY]}
                found.update((row.key, (row.data, row.checksum)) for row in connection.execute(blobs, part))
            return found

        stored = await self._read(f"blobs of session {session_id}", query)
        if sum(len(data) for data, _ in stored.values()) > _LARGE:
            found = await asyncio.to_thread(_unpacked, session_id, stored, Packer())
        else:
            found = _unpacked(session_id, stored, self._packer)
        missing = [key for key in wanted if key not in found]
        if missing:
            raise StoreError(
                f"session {session_id} has no blob {missing[0].hex()} ({len(missing)} of {len(wanted)} missing); "
                "it was discarded, or the step that brings it was never stored"
            )
        return found

    async def list_pauses(self) -> list[PauseRow]:
        """All pauses, expired ones included, by id."""

        def query(connection: Connection) -> list[PauseRow]:
            found: Any = connection.execute(select(schema.pause).order_by(schema.pause.c.pause_id)).mappings()
            return [rows.pause_record(row) for row in found]

        return await self._read("pauses", query)

    async def counts(self) -> dict[str, int]:
        """`{"sessions": n, "steps": n}`; tombstones of discarded sessions count as sessions."""

        def query(connection: Connection) -> dict[str, int]:
            return {
                f"{table.name}s": connection.execute(select(func.count()).select_from(table)).scalar_one()
                for table in (schema.session, schema.step)
            }

        return await self._read("counts", query)

    async def query(self, what: str, work: Callable[[Connection], T]) -> T:
        """Run `work` on a snapshot."""
        return await self._read(what, work)

    async def transact(self, what: str, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction of its own, between those of the writer."""
        if self._writer is None:
            raise StoreError(f"{what}: {self._no_writer()}; start one for writing first")
        backend = self.backend
        try:
            return await backend.write(work, once=True)
        except StoreError:
            raise
        except Exception as error:
            raise StoreError(f"{what}: {backend.describe(error).message}") from error

    async def _write(
        self, what: str, build: Callable[P, writes.Write], *args: P.args, **kwargs: P.kwargs
    ) -> writes.Write:
        return await self._submit(what, _built(what, partial(build, *args, **kwargs)))

    async def _submit(self, what: str, write: writes.Write) -> writes.Write:
        if self._writer is None:
            raise StoreError(f"{what}: {self._no_writer()}; start one for writing first")
        return await self._writer.submit(write)

    def _no_writer(self) -> str:
        return "the store is opened for reading" if self._read_only else "the store is not open"

    async def _read(self, what: str, query: Callable[[Connection], T]) -> T:
        backend = self.backend
        try:
            return await backend.read(query)
        except Exception as error:
            raise StoreError(f"{what}: {self._describe(error).message}") from error

    def _describe(self, error: BaseException) -> Fault:
        fault = self.backend.describe(error)
        if fault.damaged and self._damage is None:
            log.error("the store is damaged: %s", fault.message)
            self._damage = fault.message
        return fault


def _built(what: str, build: Callable[[], writes.Write]) -> writes.Write:
    try:
        return build()
    except (ValueError, TypeError) as error:
        raise StoreError(f"{what} cannot be stored: {error}") from error


def _unpacked(session_id: str, blobs: Mapping[bytes, _StoredBlob], packer: Packer) -> dict[bytes, bytes]:
    try:
        return {key: packer.unpack(check_blob(key, data, checksum)) for key, (data, checksum) in blobs.items()}
    except ValueError as error:
        raise StoreError(f"blobs of session {session_id}: {error}; restore a copy") from error


async def _commit(backend: Backend, statements: writes.Statements, batch: Sequence[writes.Write]) -> None:
    await wait_for_lease(write.fence for write in batch)
    once = any(write.alone for write in batch)  # among them are those whose result is a count
    await backend.write(lambda connection: statements.apply(connection, batch), once=once)


async def _probe(backend: Backend) -> None:
    await backend.write(version.write_probe)
    await backend.write(version.delete_probe)
