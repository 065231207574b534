"""SQLite alone: its file, its settings and the versions of its tables."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from sidecar.store import open_store
from sidecar.store.protocol import StoreError, StoreVersionError
from sidecar.store.sql import SqlStore
from sidecar.store.sqlite import _enter_wal
from tests.store.samples import session, step
from tests.store.sqlite_tools import assert_cannot_start, pragma, version_of


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_other_databases_are_refused_by_name_and_without_their_password() -> None:
    with pytest.raises(StoreError) as caught:
        open_store("mysql+pymysql://user:secret@host/db")
    assert str(caught.value).startswith("mysql+pymysql is not supported; use sqlite:///PATH or postgresql://")
    assert "secret" not in str(caught.value)


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


async def test_a_new_store_has_version_1_2(path: Path) -> None:
    assert version_of(path) == "1.2"


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
    assert version_of(path) == "1.7"


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
