"""The databases of the store benchmark, both empty and on the same disk. One event loop."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import asyncpg
from sqlalchemy import text

from benchmarks.store_raw import raw_postgres, raw_sqlite
from sidecar.store.sql import SqlStore


class Place:
    """A database to fill."""

    def __init__(self, name: str, directory: Path, url: str) -> None:
        self.name, self.directory, self._url = name, directory, url
        self._count = 0

    async def new_url(self) -> str:
        """URL of an empty database."""
        if self.name == "sqlite":
            return f"sqlite:///{self._new_file()}"
        self._count += 1
        connection = await asyncpg.connect(self._url)
        await connection.execute(f"CREATE SCHEMA bench{self._count}")
        await connection.close()
        return f"{self._url}{'&' if '?' in self._url else '?'}search_path=bench{self._count}"

    def _new_file(self) -> Path:
        self._count += 1
        return self.directory / f"{self._count}.db"

    async def raw(self, body: bytes, seconds: float) -> list[float]:
        """Seconds of single-row inserts."""
        if self.name == "sqlite":
            return await asyncio.to_thread(raw_sqlite, self._new_file(), body, seconds)
        return await raw_postgres(await self.new_url(), body, seconds)

    async def bytes_on_disk(self, store: SqlStore) -> int:
        """Of the store's tables and indexes."""
        if self.name == "sqlite":
            await store.backend.write(lambda connection: None)
            pages = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        else:
            pages = (
                "SELECT sum(pg_total_relation_size(oid)) FROM pg_class "
                "WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'"
            )
        return int(await store.query("size", lambda connection: connection.execute(text(pages)).scalar_one()))


@asynccontextmanager
async def places(disk: Path, postgres: str | None) -> AsyncIterator[list[Place]]:
    """Both databases, empty."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=disk)))
        if postgres is None:
            from tests.support.postgres import Postgres

            server = await asyncio.to_thread(Postgres, directory / "pg")
            stack.callback(server.close)
            postgres = server.url
        yield [Place("sqlite", directory, ""), Place("postgresql", directory, postgres)]
