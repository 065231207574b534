"""A database of an older minor version: upgraded by a writer, read as it is by a reader."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import text

from sidecar.store import schema
from sidecar.store.backends import locate
from sidecar.store.protocol import StoreError
from sidecar.store.sql import SqlStore
from tests.store.conftest import Database
from tests.store.older import downgrade, layout, version_of
from tests.store.samples import assert_same_step, session, step

OLD = step("s1", "old", 0, tokenizer_sha256=None, tokenizer=None, routed_rows=None)
NEW = step("s1", "new", 1)


@pytest.fixture(params=[0, 1])
async def old(request: pytest.FixtureRequest, database: Database) -> SqlStore:
    """A reader of a database as version 1.0 or 1.1 of its tables left it, with one step."""
    writer = await database.open()
    await writer.save_session(session())
    await writer.save_step(OLD, {b"k": b"v"})
    await downgrade(writer, request.param)
    await writer.close()
    return await database.open(read_only=True)


async def test_old_steps_come_back_with_what_was_not_recorded_unknown(old: SqlStore, database: Database) -> None:
    store = await database.open()
    await store.save_step(NEW, {})
    loaded = await store.load_session("s1")
    assert loaded is not None
    for found, expected in zip(loaded.steps, (OLD, NEW), strict=True):
        assert_same_step(found, expected)
    assert await store.read_blobs("s1", [b"k"]) == {b"k": b"v"}
    assert await version_of(old) == "1.2"


async def test_an_upgraded_database_has_the_columns_and_indexes_of_a_new_one(
    old: SqlStore, database: Database
) -> None:
    await database.open()
    tables = schema.metadata.sorted_tables
    columns = {("column", table.name, column.name) for table in tables for column in table.c}
    indexes = {("index", table.name, str(index.name)) for table in tables for index in table.indexes}
    assert await layout(old) == columns | indexes


async def test_several_programs_that_start_at_once_upgrade_it_once(old: SqlStore, database: Database) -> None:
    stores = await asyncio.gather(*(database.open() for _ in range(6)))
    for store in stores:
        assert await store.load_session("s1") is not None
    assert await version_of(old) == "1.2"


async def test_an_upgrade_that_fails_leaves_the_database_as_it_was(old: SqlStore, database: Database) -> None:
    version = await version_of(old)
    # not the first of those that are added
    other = locate(database.url).open()
    await other.write(lambda connection: connection.execute(text("ALTER TABLE session ADD COLUMN epoch BIGINT")))
    await other.dispose()
    before = await layout(old)
    with pytest.raises(StoreError, match="epoch"):
        await database.open()
    assert await layout(old) == before
    assert await version_of(old) == version


async def test_a_reader_reads_it_without_upgrading(old: SqlStore) -> None:
    before, version = await layout(old), await version_of(old)
    loaded = await old.load_session("s1")
    assert loaded is not None
    assert_same_step(loaded.steps[0], OLD)
    assert await old.read_blobs("s1", [b"k"]) == {b"k": b"v"}
    assert await layout(old) == before
    assert await version_of(old) == version


def test_an_older_program_may_leave_out_whatever_a_minor_version_added() -> None:
    assert max(schema.ADDED) == max(schema.ADDED_TABLES) == schema.SCHEMA_MINOR
    assert all(column.nullable for columns in schema.ADDED.values() for column in columns)
