"""The queries that load a session.

Promise: they name every column they want, so columns of a newer version do no harm. Data only, for any task.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import ARRAY, ColumnElement, LargeBinary, Select, Table, any_, bindparam, func, null, select

from sidecar.store import schema

SESSION = select(*[column for column in schema.session.c if column.name not in schema.SESSION_APART]).where(
    schema.session.c.session_id == bindparam("in_session")
)


@cache
def blobs_of(dialect: str, minor: int = schema.SCHEMA_MINOR) -> Select[Any]:
    """Blobs of a session by key, in a database of this minor version. PostgreSQL takes the keys as one array: it is
    one statement for any number."""
    key = schema.blob.c.key
    if dialect == "postgresql":
        wanted = key == any_(bindparam("keys", type_=ARRAY(LargeBinary)))
    else:
        wanted = key.in_(bindparam("keys", expanding=True))
    columns = _present(schema.blob, minor)
    return select(*columns).where(schema.blob.c.session_id == bindparam("in_session"), wanted)


BLOB_BYTES = select(func.coalesce(func.sum(func.length(schema.blob.c.data)), 0)).where(
    schema.blob.c.session_id == bindparam("in_session")
)
"""SQLite and PostgreSQL tell the length of a value without reading it."""


@cache
def steps_of(minor: int) -> Select[Any]:
    """The steps of a session in a database of this minor version, with NULL for the columns that it lacks."""
    return (
        select(*_present(schema.step, minor))
        .where(schema.step.c.session_id == bindparam("in_session"))
        .order_by(
            schema.step.c.sequence.is_(None),
            schema.step.c.sequence,
            schema.step.c.created_at,
            schema.step.c.step_id,
        )
    )


def _present(table: Table, minor: int) -> list[ColumnElement[Any]]:
    lacking = {column.name for column in schema.columns_since(minor) if column.table is table}
    return [null().label(column.name) if column.name in lacking else column for column in table.c]
