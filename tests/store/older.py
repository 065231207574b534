"""Databases as older versions of the tables left them."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from sidecar.store.schema import ADDED_TABLES, columns_since, metadata
from sidecar.store.sql import SqlStore


async def downgrade(store: SqlStore, minor: int) -> None:
    """Make a started store's database what version 1.`minor` of its tables would have left."""

    def work(connection: Connection) -> None:
        for index in [index for table in metadata.sorted_tables for index in table.indexes] if minor < 2 else []:
            index.drop(connection)
        for column in columns_since(minor):
            connection.exec_driver_sql(f"ALTER TABLE {column.table.name} DROP COLUMN {column.name}")
        for added, tables in ADDED_TABLES.items():
            for table in tables if added > minor else ():
                table.drop(connection)
        connection.execute(
            text("UPDATE meta SET value=:version WHERE key='schema_version'"), {"version": f"1.{minor}"}
        )

    await store.backend.write(work)


async def version_of(store: SqlStore) -> str:
    """The schema version that a started store's database says it has."""
    query = text("SELECT value FROM meta WHERE key='schema_version'")
    return str(await store.backend.read(lambda connection: connection.execute(query).scalar_one()))


async def layout(store: SqlStore) -> set[tuple[str, str, str]]:
    """Kind, table and name of all columns and indexes of a started store's database."""

    def work(connection: Connection) -> set[tuple[str, str, str]]:
        found = inspect(connection)
        tables = found.get_table_names()
        columns = {("column", table, column["name"]) for table in tables for column in found.get_columns(table)}
        return columns | {
            ("index", table, str(index["name"]))
            for table in tables
            for index in found.get_indexes(table)
            if not index.get("duplicates_constraint")
        }

    return await store.backend.read(work)


async def downgrade_file(path: Path) -> None:
    """Make a SQLite file what version 1.0 of its tables would have left."""
    store = SqlStore(f"sqlite:///{path}")
    await store.start()
    await downgrade(store, 0)
    await store.close()
