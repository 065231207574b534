"""A store opened for reading: for commands beside the sidecar that writes."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from sidecar.store import open_store
from sidecar.store.protocol import StoreError, StoreVersionError
from sidecar.store.sql import SqlStore
from tests.store.samples import pause, session, step


async def test_a_reader_sees_what_the_writer_beside_it_has_committed(path: Path) -> None:
    url = f"sqlite:///{path}"
    writer, reader = SqlStore(url), open_store(url, read_only=True)
    await writer.start()
    await reader.start()
    try:
        for sequence, step_id in enumerate("ab"):
            await writer.save_step(step(step_id=step_id, sequence=sequence), {b"key": b"data"})
            stored = await reader.load_session("s1")
            assert stored is not None
            assert len(stored.steps) == sequence + 1
        assert await reader.read_blobs("s1", [b"key"]) == {b"key": b"data"}
        assert await reader.counts() == {"sessions": 1, "steps": 2}
        assert writer.failure() is None
    finally:
        await reader.close()
        await writer.close()


async def test_every_write_is_refused(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(f"sqlite:///{path}", read_only=True)
    await store.start()
    with pytest.raises(StoreError, match="s2: the store is opened for reading; start one for writing first"):
        await store.save_session(session("s2"))
    with pytest.raises(StoreError, match="opened for reading"):
        await store.save_step(step(), {})
    with pytest.raises(StoreError, match="opened for reading"):
        await store.save_pause(pause())
    store.mark_delivered("s1", "a")
    assert "was not stored: the store is opened for reading" in caplog.text
    assert store.failure() == "the store is opened for reading"
    await store.close()
    await store.close()


@pytest.mark.parametrize("name", ["absent.db", "absent/tito.db"])
async def test_a_file_that_is_not_there_is_not_made(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match=r"there is no such file; name the sidecar's --store or --state-dir"):
        await open_store(f"sqlite:///{tmp_path / name}", read_only=True).start()
    assert not _entries(tmp_path)


async def test_databases_that_are_none_of_ours_are_refused(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE something (value TEXT)")
    with pytest.raises(StoreError, match=r"other\.db is no store of tito-sidecar"):
        await open_store(f"sqlite:///{other}", read_only=True).start()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = '99.0' WHERE key = 'schema_version'")
    with pytest.raises(StoreVersionError, match="upgrade tito-sidecar"):
        await open_store(f"sqlite:///{path}", read_only=True).start()


def _entries(directory: Path) -> list[Path]:
    return list(directory.iterdir())
