"""The databases that the store's tests run against: one parameter each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from sidecar.store.sql import SqlStore
from sidecar.store.writer import WriterLimits
from tests.store.samples import session
from tests.support.postgres import Postgres, postgres, postgres_url

__all__ = ["postgres", "postgres_url"]

DATABASES = ["sqlite", "postgres"]


class Database:
    """One database that stores can be opened on, again and again."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._opened: list[SqlStore] = []

    async def open(self, *, limits: WriterLimits | None = None, **options: Any) -> SqlStore:
        """A started store; closed at the end of the test if the test did not."""
        store = SqlStore(self.url, limits=limits, **options)
        self._opened.append(store)
        await store.start()
        return store

    async def close_all(self) -> None:
        for store in self._opened:
            await store.close()


@pytest.fixture(params=DATABASES)
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    if request.param == "sqlite":
        database = Database(f"sqlite:///{tmp_path}/state/tito.db")
    else:
        server: Postgres = request.getfixturevalue("postgres")  # started by the first test that needs it
        database = Database(await server.new_url())
    yield database
    await database.close_all()


@pytest.fixture
async def store(database: Database) -> SqlStore:
    return await database.open()


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A database with one session, closed."""
    path = tmp_path / "tito.db"
    store = SqlStore(f"sqlite:///{path}")
    await store.start()
    await store.save_session(session())
    await store.close()
    return path


class Commits:
    """Transactions of a store's writer, counted by SQLAlchemy."""

    count = 0

    def __call__(self, _connection: object) -> None:
        self.count += 1


@contextmanager
def counted_commits(store: SqlStore) -> Iterator[Commits]:
    """Count the commits of the writer within the block."""
    commits = Commits()
    engine = store.backend.write_engine
    event.listen(engine, "commit", commits)
    try:
        yield commits
    finally:
        event.remove(engine, "commit", commits)
