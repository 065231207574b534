"""The floor of the store benchmark: one row, one transaction, nothing around it but the driver."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import asyncpg

_TABLE = "CREATE TABLE raw (id BIGINT PRIMARY KEY, body {blob} NOT NULL)"


def raw_sqlite(path: Path, body: bytes, seconds: float) -> list[float]:
    """Seconds that each insert of `body` took, one after the other, as durable as the store's."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(_TABLE.format(blob="BLOB"))
        times: list[float] = []
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            connection.execute("INSERT INTO raw VALUES (?, ?)", (len(times), body))
            times.append(time.perf_counter() - start)
        return times


async def raw_postgres(url: str, body: bytes, seconds: float) -> list[float]:
    """The same on one connection to a PostgreSQL server."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(_TABLE.format(blob="BYTEA"))
        times: list[float] = []
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            await connection.execute("INSERT INTO raw VALUES ($1, $2)", len(times), body)
            times.append(time.perf_counter() - start)
        return times
    finally:
        await asyncio.shield(connection.close())
