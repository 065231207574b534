"""Ways in which a disk, a file system or a neighbour fails a running sidecar, and how each is made good again."""

from __future__ import annotations

import resource
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from sidecar.store.protocol import StoreError
from sidecar.store.sql import SqlStore
from tests.store.sqlite_tools import limit_pages
from tests.support.running import Running


def run(*command: str) -> str | None:
    """What a command complains of; None if it worked."""
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stderr.strip() if done.returncode else None


@contextmanager
def small_disk(where: Path, megabytes: int) -> Iterator[Path]:
    """A file system of its own, which can be filled. Skips where none may be mounted."""
    where.mkdir()
    problem = run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(where))
    if problem is not None:
        pytest.skip(f"no file system can be mounted here: {problem}")
    try:
        yield where
    finally:
        assert run("umount", "--lazy", str(where)) is None


class FullDisk:
    """Every byte of the file system that `state` is on is taken."""

    words = ("disk full", "free space")

    def __init__(self, state: Path) -> None:
        self._filler = state.parent / "filler"

    async def strike(self, running: Running) -> None:
        with self._filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    async def mend(self, running: Running) -> None:
        self._filler.unlink()


class PageLimit:
    """SQLite's own limit: what a full disk says, without one. Pages that are free within the file are taken; what
    needs no new page can still be stored."""

    words = ("disk full", "free space")

    async def strike(self, running: Running) -> None:
        store = running.sidecar._store
        assert isinstance(store, SqlStore)
        await store.transact("filler", lambda c: c.exec_driver_sql("CREATE TABLE filler (data BLOB)"))
        await limit_pages(store, 0)
        for size in (65536, 4000, 200):
            with suppress(StoreError):
                while True:
                    statement = f"INSERT INTO filler VALUES (zeroblob({size}))"
                    await store.transact("filler", lambda c, sql=statement: c.exec_driver_sql(sql))  # type: ignore[misc]

    async def mend(self, running: Running) -> None:
        store = running.sidecar._store
        assert isinstance(store, SqlStore)
        await limit_pages(store, None)
        await store.transact("filler", lambda c: c.exec_driver_sql("DROP TABLE filler"))


class WriteError:
    """The kernel refuses writes beyond the present end of the log: an input/output error to SQLite."""

    words = ("input/output error", "check the disk")

    def __init__(self, state: Path) -> None:
        self._log = state / "tito.db-wal"
        self._before: tuple[int, int] | None = None

    async def strike(self, running: Running) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._log.stat().st_size, self._before[1]))

    async def mend(self, running: Running) -> None:
        if self._before is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, self._before)
            self._before = None


class ForeignLock:
    """Another process holds the write lock and does not let go."""

    words = ("locked by another process",)

    def __init__(self, state: Path) -> None:
        self._path = state / "tito.db"

    async def strike(self, running: Running) -> None:
        self._other = sqlite3.connect(self._path, isolation_level=None)
        self._other.execute("BEGIN IMMEDIATE")

    async def mend(self, running: Running) -> None:
        self._other.close()


class ReadOnly:
    """The database refuses writes."""

    words = ("read-only", "writable")

    async def strike(self, running: Running) -> None:
        self._query_only(running, "ON")

    async def mend(self, running: Running) -> None:
        self._query_only(running, "OFF")

    @staticmethod
    def _query_only(running: Running, value: str) -> None:
        with closing(running.sidecar._store.backend.write_engine.raw_connection()) as connection:  # type: ignore[attr-defined]
            connection.cursor().execute(f"PRAGMA query_only={value}")


class Away:
    """A file of the database is moved aside, and back again."""

    words = ("deleted or replaced", "put the file back")

    def __init__(self, state: Path, name: str) -> None:
        self._path = state / name
        self._aside = state / f"{name}.aside"

    async def strike(self, running: Running) -> None:
        self._path.rename(self._aside)

    async def mend(self, running: Running) -> None:
        self._aside.rename(self._path)
