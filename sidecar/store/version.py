"""Creates the tables, or checks that those found are ours to use and adds what they lack; and the trial write.

Promise: a database of a newer major version, or of another program, is left untouched. Runs inside the caller's
transactions on the writer's connection.
"""

from __future__ import annotations

from sqlalchemy import Connection, func, insert, inspect, select, update
from sqlalchemy.schema import CreateColumn

from sidecar.store import schema
from sidecar.store.protocol import StoreError, StoreVersionError
from sidecar.store.writes import insert_or_replace

_LOCK = 0x7469746F
"""Of the programs that create or upgrade tables in one PostgreSQL database, one at a time."""

_PROBE_CHARACTERS = 65536
"""Large enough to need new pages, for which a full disk has no room."""


_OURS = f"{schema.SCHEMA_MAJOR}.{schema.SCHEMA_MINOR}"


def create_or_upgrade(place: str, connection: Connection) -> None:
    """Create the tables in an empty database, else check its version and add the columns that it lacks.

    Raises `StoreVersionError` on a newer major version, `StoreError` on a database that is not ours. A newer
    minor version is fine and stays as it is: it only adds what this program may ignore."""
    if connection.dialect.name == "postgresql":  # SQLite's transactions that write exclude each other anyway
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    names = set(inspect(connection).get_table_names())
    if schema.meta.name in names:
        _upgrade(connection, check(place, connection))
    elif names:
        raise StoreError(
            f"store {place} holds tables of another program "
            f"({', '.join(sorted(names)[:3])}); give a file, database or schema of its own"
        )
    else:
        schema.metadata.create_all(connection)
        connection.execute(insert(schema.meta).values(key=schema.VERSION_KEY, value=_OURS))


def _upgrade(connection: Connection, minor: int) -> None:
    if minor >= schema.SCHEMA_MINOR:
        return
    for column in schema.columns_since(minor):
        definition = CreateColumn(column).compile(dialect=connection.dialect)
        connection.exec_driver_sql(f"ALTER TABLE {column.table.name} ADD COLUMN {definition}")
    schema.metadata.create_all(connection)  # the tables that are not there yet, with their indexes
    for table in schema.metadata.sorted_tables:
        for index in table.indexes:
            index.create(connection, checkfirst=True)
    connection.execute(update(schema.meta).where(schema.meta.c.key == schema.VERSION_KEY).values(value=_OURS))


def write_probe(connection: Connection) -> None:
    """Write a row that takes room. Committed before `delete_probe`: one transaction of both writes nothing."""
    row = {"key": schema.PROBE_KEY, "value": "." * _PROBE_CHARACTERS}
    connection.execute(insert_or_replace(connection.dialect.name, schema.meta), row)


def delete_probe(connection: Connection) -> None:
    """Delete the row of `write_probe`."""
    connection.execute(schema.meta.delete().where(schema.meta.c.key == schema.PROBE_KEY))


def check(place: str, connection: Connection) -> int:
    """Check the version of a database for a reader or writer of it; its minor version. Raises `StoreVersionError`
    on a newer major version, `StoreError` on a database without our tables."""
    place = f"store {place}"
    if not inspect(connection).has_table(schema.meta.name):
        raise StoreError(f"{place} is no store of tito-sidecar; name the sidecar's --store or --state-dir")
    found = connection.execute(
        select(schema.meta.c.value).where(schema.meta.c.key == schema.VERSION_KEY)
    ).scalar_one_or_none()
    major, _, minor = (found or "").partition(".")
    if not (major.isdecimal() and minor.isdecimal()):
        raise StoreError(f"{place} has no readable schema version ({found!r}); give another path")
    if int(major) > schema.SCHEMA_MAJOR:
        raise StoreVersionError(
            f"{place} has schema version {found}, this program knows {_OURS}; upgrade tito-sidecar, "
            "or give another path"
        )
    if int(major) < schema.SCHEMA_MAJOR:
        raise StoreError(f"{place} has schema version {found}, which this program ({_OURS}) cannot upgrade")
    return int(minor)
