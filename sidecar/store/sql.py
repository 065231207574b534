"""The store over SQL: the Protocol's methods on one grouped writer and a few read connections.

Promise: what `sidecar.store.protocol.Store` says. Use from one event loop, by any number of tasks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ParamSpec, TypeVar

from sqlalchemy import Connection, Select, bindparam, func, null, select

from sidecar.store import rows, schema, version, writes
from sidecar.store.backend import Backend
from sidecar.store.protocol import PauseRow, SessionRow, StoredSession, StoreError
from sidecar.store.sqlite import SqliteBackend, check_file, prepare_file, sqlite_path
from sidecar.store.writer import GroupedWriter, WriterLimits
from sidecar.tito.records import StepRecord

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_KEYS_PER_QUERY = 1000

_SESSION = select(schema.session).where(schema.session.c.session_id == bindparam("in_session"))
_BLOBS = select(schema.blob.c.key, schema.blob.c.data).where(
    schema.blob.c.session_id == bindparam("in_session"),
    schema.blob.c.key.in_(bindparam("keys", expanding=True)),
)


def _steps_of(minor: int) -> Select[Any]:
    """The steps of a session in a database of this minor version, with NULL for the columns that it lacks."""
    lacking = {column.name for column in schema.columns_since(minor)}
    columns = [null().label(column.name) if column.name in lacking else column for column in schema.step.c]
    return (
        select(*columns)
        .where(schema.step.c.session_id == bindparam("in_session"))
        .order_by(
            schema.step.c.sequence.is_(None),
            schema.step.c.sequence,
            schema.step.c.created_at,
            schema.step.c.step_id,
        )
    )


class SqlStore:
    """A `Store` in one SQLite file. PostgreSQL will be another backend under the same code."""

    def __init__(
        self,
        url: str,
        *,
        limits: WriterLimits | None = None,
        busy_timeout: float = 5.0,
        read_only: bool = False,
    ) -> None:
        """`url`: `sqlite:///PATH` (relative) or `sqlite:////PATH` (absolute). Raises `StoreError` for others.

        `busy_timeout`: seconds to wait for a lock that another process holds. `read_only`: `start` only opens what
        is there, and every write is refused."""
        scheme = url.partition("://")[0].partition("+")[0] if "://" in url else url[:40]
        if scheme != "sqlite":
            raise StoreError(f"{scheme} is not supported by this version; use sqlite:///PATH")
        self._path = sqlite_path(url)
        self._limits = limits or WriterLimits()
        self._busy_timeout = busy_timeout
        self._read_only = read_only
        self._backend: Backend | None = None
        self._writer: GroupedWriter | None = None
        self._steps = _steps_of(schema.SCHEMA_MINOR)

    @property
    def backend(self) -> Backend:
        """The opened database. A seam for tests, which count its commits and limit its pages. Raises `StoreError`
        before `start`."""
        if self._backend is None:
            raise StoreError(f"store {self._path} is not open; call start() first")
        return self._backend

    async def start(self) -> None:
        """Open or create the database. Raises `StoreError`, `StoreVersionError` on a newer one."""
        if self._backend is not None:
            raise StoreError(f"store {self._path} is already open; make another one or close it first")
        await asyncio.to_thread(check_file if self._read_only else prepare_file, self._path)
        backend = SqliteBackend(self._path, self._busy_timeout)
        try:
            if self._read_only:
                self._steps = _steps_of(await backend.read(version.check))
            else:
                await backend.write(version.create_or_upgrade)
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
            partial(_commit, backend, statements), partial(_probe, backend), backend.describe, self._limits
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
        """Why the store cannot write at present, or None. Clears itself: a trial write is made every second."""
        return self._no_writer() if self._writer is None else self._writer.failure()

    async def save_session(self, row: SessionRow) -> None:
        """Insert or replace a session's row."""
        await self._write(f"session {row.session_id}", writes.session_write, row)

    async def save_step(self, step: StepRecord, blobs: Mapping[bytes, bytes]) -> None:
        """Insert or replace a step by its id, and the blobs the session lacks.

        Raises `StoreError` when the session was never saved or another step has the sequence number."""
        what = f"step {step.step_id} of session {step.session_id}"
        await self._write(what, writes.step_write, step, blobs)

    def mark_delivered(self, session_id: str, step_id: str) -> None:
        """Set `delivered` in a later group commit; an unknown step is ignored."""
        write = writes.delivered_write(session_id, step_id)
        if self._writer is None:
            log.warning("%s was not stored: %s", write.what, self._no_writer())
        else:
            self._writer.post(write)

    async def discard_session(self, row: SessionRow) -> int:
        """Save `row` as a tombstone and delete the session's steps and blobs; the number of steps deleted."""
        done = await self._write(f"discard of session {row.session_id}", writes.discard_write, row)
        return done.deleted

    async def save_pause(self, pause: PauseRow) -> None:
        """Insert or replace a pause."""
        await self._write(f"pause {pause.pause_id}", writes.pause_write, pause)

    async def delete_pauses(self, pause_ids: Sequence[str]) -> None:
        """Forget pauses; unknown ids are ignored."""
        await self._write("deletion of pauses", writes.delete_pauses_write, pause_ids)

    async def load_session(self, session_id: str) -> StoredSession | None:
        """The session with all its steps, as of one moment, or None for an id never seen."""

        def query(connection: Connection) -> tuple[Any, Sequence[Any]]:
            at = {"in_session": session_id}
            found = connection.execute(_SESSION, at).mappings().first()
            return found, [] if found is None else connection.execute(self._steps, at).mappings().all()

        what = f"session {session_id}"
        found, steps = await self._read(what, query)
        if found is None:
            return None
        try:
            return StoredSession(rows.session_record(found), [rows.step_record(step) for step in steps])
        except (ValueError, TypeError, LookupError) as error:
            raise StoreError(f"{what}: a stored row cannot be read ({error}); restore a copy") from error

    async def read_blobs(self, session_id: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The blobs of a session by key. Raises `StoreError` if one is missing."""
        wanted = list(dict.fromkeys(keys))

        def query(connection: Connection) -> dict[bytes, bytes]:
            found: dict[bytes, bytes] = {}
            for at in range(0, len(wanted), _KEYS_PER_QUERY):
                part = {"in_session": session_id, "keys": wanted[at : at + _KEYS_PER_QUERY]}
                found.update((row.key, row.data) for row in connection.execute(_BLOBS, part))
            return found

        found = await self._read(f"blobs of session {session_id}", query)
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

    async def _write(
        self, what: str, build: Callable[P, writes.Write], *args: P.args, **kwargs: P.kwargs
    ) -> writes.Write:
        try:
            write = build(*args, **kwargs)
        except (ValueError, TypeError) as error:
            raise StoreError(f"{what} cannot be stored: {error}") from error
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
            raise StoreError(f"{what}: {backend.describe(error).message}") from error


async def _commit(backend: Backend, statements: writes.Statements, batch: Sequence[writes.Write]) -> None:
    await backend.write(lambda connection: statements.apply(connection, batch))


async def _probe(backend: Backend) -> None:
    await backend.write(version.write_probe)
    await backend.write(version.delete_probe)
