"""SQLite as a backend: the file, the connections and what its errors mean.

Promise: WAL with `synchronous=FULL`, so a commit that returned survives a crash of process or machine; a new
file is readable by its owner only. One connection writes, others read; used from one event loop.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, AsyncAdaptedQueuePool, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import create_async_engine

from sidecar.store.backend import Fault
from sidecar.store.protocol import StoreError
from sidecar.store.sqlite_files import FilesGone, OpenFiles

T = TypeVar("T")

_READERS = 4

_CAUSES = {
    sqlite3.SQLITE_FULL: ("disk full", "free space on its file system"),
    sqlite3.SQLITE_READONLY: ("read-only", "make the file, its directory and its file system writable"),
    sqlite3.SQLITE_PERM: ("no permission", "make the file and its directory writable for this user"),
    sqlite3.SQLITE_CORRUPT: ("corrupt", "move the file aside and start anew, or restore a copy"),
    sqlite3.SQLITE_NOTADB: ("not a database", "give another path, or move the file aside"),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened", "check that the directory exists and is writable"),
    sqlite3.SQLITE_IOERR: ("input/output error", "check the disk; network file systems are not supported"),
    sqlite3.SQLITE_BUSY: ("locked by another process", "stop that process, or give each sidecar its own file"),
}
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_WAITS = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_FAULTS_OF_ONE_ROW = (
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_RANGE,
)


def sqlite_path(url: str) -> Path:
    """The absolute path that `sqlite:///PATH` names. Raises `StoreError` for a URL without a file's path."""
    path = url.removeprefix("sqlite:///")
    if path == url or not path or path == ":memory:" or "?" in path:
        raise StoreError(f"store {url!r} does not name a file; use sqlite:///PATH, without options")
    return Path(path).absolute()


def prepare_file(path: Path) -> None:
    """Create directory (mode 0700) and file (mode 0600) where missing. Raises `StoreError`. Blocks."""
    if path.is_dir():
        raise StoreError(f"store {path} is a directory; name a file in it, for example {path / 'tito.db'}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreError(
            f"store {path} cannot be opened for writing ({error.strerror}: {error.filename}); "
            "make the file and its directory writable for this user, or give another path"
        ) from error


def check_file(path: Path) -> None:
    """Raises `StoreError` if there is no such file: a reader must not create one."""
    if not path.is_file():
        raise StoreError(f"store {path}: there is no such file; name the sidecar's --store or --state-dir")


class SqliteBackend:
    """A prepared file; connects on first use.

    Reads go through aiosqlite. A write transaction is one call in a thread of its own instead: the asynchronous
    driver switches threads three times for each statement, which took 1.8 ms of CPU for a step on its own where
    this takes 0.6 ms, and a quarter more for steps in groups.
    """

    def __init__(self, path: Path, busy_timeout: float) -> None:
        """`busy_timeout`: seconds to wait for a lock that another process holds."""
        self._path = path
        self._files = OpenFiles(path)
        # No transactions by the driver: it begins them later than SQLAlchemy does, and none for reads.
        connect_args = {"isolation_level": None, "timeout": busy_timeout}
        self.write_engine = create_engine(
            URL.create("sqlite", database=str(path)),
            connect_args=connect_args,
            pool_size=1,
            max_overflow=0,
            hide_parameters=True,
        )
        self._read_engine = create_async_engine(
            URL.create("sqlite+aiosqlite", database=str(path)),
            connect_args=connect_args,
            poolclass=AsyncAdaptedQueuePool,  # the default only since SQLAlchemy 2.0.38
            pool_size=_READERS,
            max_overflow=0,
            hide_parameters=True,
        )
        self._write_thread = ThreadPoolExecutor(1, thread_name_prefix="store-writer")
        _set_up(self.write_engine, partial(_set_up_writer, path, busy_timeout), "BEGIN IMMEDIATE")
        _set_up(self._read_engine.sync_engine, _set_up_reader, "BEGIN")

    async def prepare(self, read_only: bool) -> None:
        """Create the file if it may be created."""
        await asyncio.to_thread(check_file if read_only else prepare_file, self._path)

    async def write(self, work: Callable[[Connection], T], *, once: bool = False) -> T:
        """Run `work` in a transaction in the writer's thread. A COMMIT that fails is always rolled back."""
        return await asyncio.get_running_loop().run_in_executor(self._write_thread, self._transact, work)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` on a snapshot."""
        async with self._read_engine.connect() as connection:
            return await connection.run_sync(work)

    def describe(self, error: BaseException) -> Fault:
        """What an exception says, by SQLite's primary result code."""
        return describe(self._path, error)

    async def dispose(self) -> None:
        """Close all connections; the last one moves the WAL into the file."""
        await self._read_engine.dispose()
        await asyncio.get_running_loop().run_in_executor(self._write_thread, self.write_engine.dispose)
        self._write_thread.shutdown(wait=False)

    def _transact(self, work: Callable[[Connection], T]) -> T:
        try:
            with self.write_engine.begin() as connection:
                result = work(connection)
                self._files.check()
                return result
        except FilesGone as gone:
            if gone.log_only:
                self._save_log()
            raise

    def _save_log(self) -> None:
        """The log is still open here, though no start will find it: move what was committed into the database."""
        with self.write_engine.connect() as connection:
            connection.rollback()
            raw = connection.connection.dbapi_connection
            assert raw is not None
            raw.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


def describe(path: Path, error: BaseException) -> Fault:
    """What an exception raised by SQLAlchemy or SQLite says about the database at `path`."""
    cause = (error.orig if isinstance(error, StatementError) else None) or error
    code = getattr(cause, "sqlite_errorcode", None)
    if isinstance(error, FilesGone):
        return Fault(str(error), environmental=True, worth_splitting=False)
    if code is None:
        environmental = isinstance(error, DBAPIError | sqlite3.Error | PoolTimeoutError | StoreError)
        return Fault(f"{type(cause).__name__}: {cause}", environmental)
    code &= 0xFF  # the primary code of an extended one
    if code in _FAULTS_OF_ONE_ROW:
        return Fault(str(cause), environmental=False)
    what, remedy = _CAUSES.get(code, ("failed", "see the message of SQLite"))
    message = f"{path}: {what} ({cause}); {remedy}"
    return Fault(message, True, worth_splitting=code not in _WAITS, damaged=code in _DAMAGED)


def _set_up(engine: Engine, set_up: Callable[[Any], None], begin: str) -> None:
    """Run `set_up` with a cursor on each new connection, and `begin` at the start of each transaction."""

    def on_connect(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        try:
            set_up(cursor)
        except BaseException:
            connection.close()  # the pool does not close what failed here, and its thread would stay
            raise
        cursor.close()

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))


def _set_up_writer(path: Path, busy_timeout: float, cursor: Any) -> None:
    mode = _enter_wal(cursor, busy_timeout)
    if mode != "wal":
        raise StoreError(f"store {path}: its file system allows no WAL (journal mode {mode}); use a local disk")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute("PRAGMA journal_size_limit=67108864")  # bytes; a long read may let the WAL grow beyond


def _enter_wal(cursor: Any, busy_timeout: float) -> str:
    """The journal mode after asking for WAL. SQLite does not itself wait when several processes ask at once."""
    deadline = time.monotonic() + busy_timeout
    while True:
        try:
            mode: str = cursor.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _WAITS or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return mode


def _set_up_reader(cursor: Any) -> None:
    cursor.execute("PRAGMA query_only=ON")
