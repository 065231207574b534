"""A database of an older minor version: upgraded by a writer, read as it is by a reader."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sidecar.store import open_store, schema
from sidecar.store.sql import SqlStore
from tests.store.samples import assert_same_step, step
from tests.store.sqlite_tools import assert_cannot_start, downgrade, version_of

OLD = step("s1", "old", 0, tokenizer_sha256=None, tokenizer=None, routed_rows=None)
NEW = step("s1", "new", 1)


@pytest.fixture
async def old(path: Path) -> Path:
    """A database as version 1.0 of its tables left it, with one step."""
    store = SqlStore(f"sqlite:///{path}")
    await store.start()
    await store.save_step(OLD, {})
    await store.close()
    downgrade(path)
    return path


def columns(path: Path) -> set[str]:
    """Names of the columns of table `step`."""
    with closing(sqlite3.connect(path)) as connection:
        return {name for _, name, *_ in connection.execute("PRAGMA table_info(step)")}


async def test_old_steps_come_back_with_what_was_not_recorded_unknown(old: Path) -> None:
    store = SqlStore(f"sqlite:///{old}")
    await store.start()
    await store.save_step(NEW, {})
    loaded = await store.load_session("s1")
    await store.close()
    assert loaded is not None
    for found, expected in zip(loaded.steps, (OLD, NEW), strict=True):
        assert_same_step(found, expected)
    assert version_of(old) == "1.1"


async def test_an_upgraded_database_has_the_columns_of_a_new_one(old: Path, tmp_path: Path) -> None:
    for path in (old, tmp_path / "new.db"):
        store = SqlStore(f"sqlite:///{path}")
        await store.start()
        await store.close()
    assert columns(old) == columns(tmp_path / "new.db") == {column.name for column in schema.step.c}


async def test_several_programs_that_start_at_once_upgrade_it_once(old: Path) -> None:
    stores = [SqlStore(f"sqlite:///{old}") for _ in range(6)]
    await asyncio.gather(*(store.start() for store in stores))
    for store in stores:
        assert await store.load_session("s1") is not None
        await store.close()
    assert version_of(old) == "1.1"


async def test_an_upgrade_that_fails_leaves_the_database_as_it_was(old: Path) -> None:
    with closing(sqlite3.connect(old)) as connection, connection:
        connection.execute("ALTER TABLE step ADD COLUMN tokenizer TEXT")  # the second of those that are added
    before = columns(old)
    await assert_cannot_start(old, "tokenizer")
    assert columns(old) == before
    assert version_of(old) == "1.0"


async def test_a_reader_reads_it_without_upgrading(old: Path) -> None:
    before = columns(old)
    store = open_store(f"sqlite:///{old}", read_only=True)
    await store.start()
    loaded = await store.load_session("s1")
    await store.close()
    assert loaded is not None
    assert_same_step(loaded.steps[0], OLD)
    assert columns(old) == before
    assert version_of(old) == "1.0"


def test_an_older_program_may_leave_out_whatever_a_minor_version_added() -> None:
    assert max(schema.ADDED) == schema.SCHEMA_MINOR
    assert all(column.nullable for columns in schema.ADDED.values() for column in columns)
