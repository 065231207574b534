"""What the tests of SQLite share: damage, limits and lost rights."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection

from sidecar.store.protocol import StoreError
from sidecar.store.sql import SqlStore

NOBODY = 65534
NO_LIMIT = 1_073_741_823


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


async def assert_cannot_start(path: Path, *words: str, error: type[StoreError] = StoreError) -> None:
    """Starting fails, and the message names the path and each of the words."""
    store = SqlStore(f"sqlite:///{path}", busy_timeout=0.05)
    with pytest.raises(error) as caught:
        await store.start()
    for word in (str(path), *words):
        assert word in str(caught.value)
    await store.close()


def version_of(path: Path) -> str:
    """The schema version that a database says it has."""
    with closing(sqlite3.connect(path)) as connection:
        found: str = connection.execute("SELECT value FROM meta WHERE key='schema_version'").fetchone()[0]
        return found


def pragma(connection: Connection, text: str) -> int | str:
    found: int | str = connection.exec_driver_sql(f"PRAGMA {text}").scalar_one()
    return found


async def limit_pages(store: SqlStore, spare: int | None) -> None:
    """Let the database grow by `spare` pages and no more, as on a full disk; None lifts the limit."""

    def set_limit(connection: Connection) -> None:
        limit = NO_LIMIT if spare is None else int(pragma(connection, "page_count")) + spare
        pragma(connection, f"max_page_count={limit}")

    await store.backend.write(set_limit)
