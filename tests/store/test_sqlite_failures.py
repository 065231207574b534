"""SQLite alone: what its errors become, and that it recovers from them."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import numpy as np
import pytest
from sqlalchemy import event

from sidecar.store.protocol import StoreError
from sidecar.store.sql import SqlStore
from sidecar.store.writer import WriterLimits
from tests.store.samples import step
from tests.store.sqlite_tools import assert_cannot_start, damage, limit_pages, set_mode, unprivileged


@pytest.fixture
def public_directory() -> Iterator[Path]:
    """A directory below which another user may look, as pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


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


async def test_a_lock_of_another_process_fails_the_calls_and_is_forgotten_after_it(path: Path) -> None:
    store = SqlStore(f"sqlite:///{path}", busy_timeout=0.05)
    await store.start()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        tries: list[object] = []
        event.listen(store.backend.write_engine, "checkout", lambda connection, *_: tries.append(connection))
        calls = [store.save_step(step(step_id=f"{index}", sequence=index), {}) for index in range(8)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert all("locked by another process" in str(outcome) for outcome in outcomes)
        assert len(tries) == 1, "a batch that waited for a lock does not wait again for each of its steps"
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
    big = {b"k": Random(0).randbytes(1_000_000)}  # which cannot be packed
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
        await store.save_step(step(), {b"k": Random(0).randbytes(1_000_000)})
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


async def test_a_store_that_became_read_only_says_so_and_recovers(path: Path) -> None:
    store = SqlStore(f"sqlite:///{path}", limits=WriterLimits(probe_seconds=3600))
    await store.start()

    def query_only(value: str) -> None:
        with closing(store.backend.write_engine.raw_connection()) as connection:
            connection.cursor().execute(f"PRAGMA query_only={value}")

    query_only("ON")
    with pytest.raises(StoreError, match="read-only"):
        await store.save_step(step(), {})
    assert "make the file, its directory and its file system writable" in (store.failure() or "")
    query_only("OFF")
    await store.save_step(step(), {})
    assert store.failure() is None
    await store.close()
