"""SQLite alone: its file, its settings, and what its errors become."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import Connection, event

from sidecar.store import open_store
from sidecar.store.protocol import StoreError, StoreVersionError
from sidecar.store.sql import SqlStore
from sidecar.store.sqlite import _enter_wal
from sidecar.store.writer import WriterLimits
from tests.store.samples import session, step

NOBODY = 65534
NO_LIMIT = 1_073_741_823


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A database with one session, closed."""
    path = tmp_path / "tito.db"
    store = SqlStore(f"sqlite:///{path}")
    await store.start()
    await store.save_session(session())
    await store.close()
    return path


@pytest.fixture
def public_directory() -> Iterator[Path]:
    """A directory below which another user may look, as pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Act as a user whom file modes bind, if the tests run as root."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def set_mode(path: Path, mode: int) -> None:
    path.chmod(mode)


def damage(path: Path, start: int, length: int | None = None) -> None:
    """Overwrite part of a file, to its end if no length is given."""
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"\xff" * (path.stat().st_size - start if length is None else length))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def assert_cannot_start(path: Path, *words: str, error: type[StoreError] = StoreError) -> None:
    """Starting fails, and the message names the path and each of the words."""
    store = SqlStore(f"sqlite:///{path}", busy_timeout=0.05)
    with pytest.raises(error) as caught:
        await store.start()
    for word in (str(path), *words):
        assert word in str(caught.value)
    await store.close()


def pragma(connection: Connection, text: str) -> int | str:
    found: int | str = connection.exec_driver_sql(f"PRAGMA {text}").scalar_one()
    return found


async def limit_pages(store: SqlStore, spare: int | None) -> None:
    """Let the database grow by `spare` pages and no more, as on a full disk; None lifts the limit."""

    def set_limit(connection: Connection) -> None:
        limit = NO_LIMIT if spare is None else int(pragma(connection, "page_count")) + spare
        pragma(connection, f"max_page_count={limit}")

    await store.backend.write(set_limit)


def test_other_databases_are_refused_by_name_and_without_their_password() -> None:
    with pytest.raises(StoreError) as caught:
        open_store("postgresql://user:secret@host/db")
    assert str(caught.value) == "postgresql is not supported by this version; use sqlite:///PATH"
    with pytest.raises(StoreError, match="mysql is not supported"):
        open_store("mysql+pymysql://host/db")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///x.db?mode=ro", "x.db"])
def test_a_url_without_a_file_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match="use sqlite:///PATH"):
        open_store(url)


async def test_a_relative_path_is_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqlStore("sqlite:///sub dir/tito%20.db")
    await store.start()
    await store.close()
    assert (tmp_path / "sub dir" / "tito%20.db").is_file()


async def test_only_the_owner_can_read_a_new_store(tmp_path: Path) -> None:
    path = tmp_path / "new" / "tito.db"
    store = SqlStore(f"sqlite:///{path}")
    await store.start()
    await store.save_session(session())
    assert mode(path.parent) == 0o700
    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == ["tito.db", "tito.db-shm", "tito.db-wal"]
    assert {mode(file) for file in files} == {0o600}
    await store.close()


async def test_commits_wait_for_the_disk(path: Path) -> None:
    store = SqlStore(f"sqlite:///{path}")
    await store.start()
    names = ("journal_mode", "synchronous", "foreign_keys")
    found = await store.backend.write(lambda connection: [pragma(connection, name) for name in names])
    assert found == ["wal", 2, 1]
    await store.close()


async def test_a_new_store_has_version_1_0(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT value FROM meta WHERE key='schema_version'").fetchone() == ("1.0",)


@pytest.mark.parametrize(
    ("version", "error"),
    [("2.0", StoreVersionError), ("10.3", StoreVersionError), ("0.9", StoreError), ("x", StoreError)],
)
async def test_another_major_version_is_refused(path: Path, version: str, error: type[StoreError]) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE meta SET value=?", (version,))
    await assert_cannot_start(path, version, error=error)


async def test_a_newer_minor_version_is_fine(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE meta SET value='1.7'")
        connection.execute("ALTER TABLE step ADD COLUMN novelty TEXT")
    store = SqlStore(f"sqlite:///{path}")
    await store.start()
    await store.save_step(step(), {})
    assert await store.load_session("s1") is not None
    await store.close()


async def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE users (name)")
    await assert_cannot_start(path, "another program", "users")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("users",)]


async def test_several_stores_may_create_one_file_at_the_same_time(tmp_path: Path) -> None:
    for attempt in range(5):
        stores = [SqlStore(f"sqlite:///{tmp_path}/{attempt}.db") for _ in range(6)]
        await asyncio.gather(*(store.start() for store in stores))
        for index, store in enumerate(stores):
            await store.save_session(session(f"s{index}"))
        assert (await stores[0].counts())["sessions"] == 6
        for store in stores:
            await store.close()


@pytest.mark.parametrize("failures", [0, 1, 3])
def test_a_lock_on_the_change_to_wal_is_waited_for(failures: int) -> None:
    class Cursor:
        asked = 0

        def execute(self, _text: str) -> Cursor:
            self.asked += 1
            if self.asked <= failures:
                error = sqlite3.OperationalError("database is locked")
                error.sqlite_errorcode = sqlite3.SQLITE_BUSY
                raise error
            return self

        def fetchone(self) -> tuple[str]:
            return ("wal",)

    assert _enter_wal(Cursor(), 30) == "wal"
    if failures:
        with pytest.raises(sqlite3.OperationalError):
            _enter_wal(Cursor(), -1)


async def test_a_directory_is_not_a_store(tmp_path: Path) -> None:
    await assert_cannot_start(tmp_path, "is a directory", "name a file in it")


async def test_a_directory_that_cannot_be_written_is_named(public_directory: Path) -> None:
    set_mode(public_directory, 0o555)
    with unprivileged():
        await assert_cannot_start(public_directory / "tito.db", "Permission denied", "writable for this user")
        await assert_cannot_start(public_directory / "sub" / "tito.db", "Permission denied")


async def test_a_read_only_file_is_named(public_directory: Path) -> None:
    path = public_directory / "tito.db"
    store = SqlStore(f"sqlite:///{path}")
    await store.start()
    await store.close()
    set_mode(path, 0o444)
    with unprivileged():
        await assert_cannot_start(path, "Permission denied", "writable for this user")


async def test_a_file_in_a_directory_that_cannot_be_written_is_named(public_directory: Path) -> None:
    path = public_directory / "tito.db"
    store = SqlStore(f"sqlite:///{path}")
    await store.start()
    await store.close()
    set_mode(path, 0o666)
    set_mode(public_directory, 0o555)
    with unprivileged():
        await assert_cannot_start(path, "directory")


async def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tito.db"
    path.write_bytes(b"not a database, " * 1000)
    await assert_cannot_start(path, "not a database", "move the file aside")
    assert path.read_bytes().startswith(b"not a database")


async def test_damaged_pages_are_reported_as_corrupt(path: Path) -> None:
    damage(path, 100)
    await assert_cannot_start(path, "corrupt", "restore a copy")


async def test_damage_below_a_session_fails_the_read_and_says_so(path: Path) -> None:
    store = SqlStore(f"sqlite:///{path}")
    await store.start()
    await store.save_step(step(output_ids=np.arange(20_000, dtype=np.int32)), {})
    await store.close()
    with closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name='step'").fetchone()
    damage(path, (page - 1) * 4096, 4096)
    await store.start()
    with pytest.raises(StoreError, match=r"session s1: .*corrupt"):
        await store.load_session("s1")
    await store.close()


async def test_a_stored_row_that_cannot_be_read_is_an_error(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE session SET metadata='{'")
    store = SqlStore(f"sqlite:///{path}")
    await store.start()
    with pytest.raises(StoreError, match="session s1: a stored row cannot be read"):
        await store.load_session("s1")
    await store.close()


async def test_a_lock_of_another_process_fails_the_call_and_is_forgotten_after_it(path: Path) -> None:
    store = SqlStore(f"sqlite:///{path}", busy_timeout=0.05)
    await store.start()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked by another process"):
            await store.save_step(step(), {})
        assert "locked by another process" in (store.failure() or "")
        assert await store.load_session("s1") is not None, "reads go on"
        other.execute("ROLLBACK")
    await store.save_step(step(), {})
    assert store.failure() is None
    await store.close()


async def test_a_lock_of_another_process_stops_the_start(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        await assert_cannot_start(path, "locked by another process", "its own file")


async def test_a_full_disk_fails_the_calls_keeps_what_was_stored_and_is_recovered_from(path: Path) -> None:
    store = SqlStore(f"sqlite:///{path}", limits=WriterLimits(probe_seconds=3600))
    await store.start()
    big = {b"k": bytes(1_000_000)}
    await store.save_step(step(step_id="before", sequence=0), {b"a": b"kept"})
    await limit_pages(store, 40)
    calls = [store.save_step(step(step_id=f"{index}", sequence=index), {}) for index in range(1, 6)]
    calls.insert(2, store.save_step(step(step_id="big", sequence=9), big))
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    failed = [outcome for outcome in outcomes if outcome is not None]
    assert failed == [outcomes[2]], "what still fits is stored"
    assert "disk full" in str(failed[0])
    assert str(path) in str(failed[0])
    with pytest.raises(StoreError, match="disk full"):
        await store.save_step(step(step_id="big", sequence=9), big)
    assert "disk full" in (store.failure() or "")
    assert "free space" in (store.failure() or "")
    loaded = await store.load_session("s1")
    assert loaded is not None
    assert [found.step_id for found in loaded.steps] == ["before", "1", "2", "3", "4", "5"]
    assert await store.read_blobs("s1", [b"a"]) == {b"a": b"kept"}
    await limit_pages(store, None)
    await store.save_step(step(step_id="big", sequence=9), big)
    assert store.failure() is None
    await store.close()


async def test_a_disk_with_space_again_is_noticed_without_a_call(path: Path) -> None:
    store = SqlStore(f"sqlite:///{path}", limits=WriterLimits(probe_seconds=0.01))
    await store.start()
    await limit_pages(store, 0)
    with pytest.raises(StoreError, match="disk full"):
        await store.save_step(step(), {b"k": bytes(1_000_000)})
    store.mark_delivered("s1", "a")
    tried = threading.Event()
    event.listen(store.backend.write_engine, "rollback", lambda _connection: tried.set())
    assert await asyncio.to_thread(tried.wait, 30)
    assert "disk full" in (store.failure() or ""), "a trial write fails, too"
    await limit_pages(store, None)
    async with asyncio.timeout(30):
        while store.failure() is not None:
            await store.counts()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT key FROM meta").fetchall() == [("schema_version",)]
    await store.close()
