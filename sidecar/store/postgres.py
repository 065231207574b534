"""PostgreSQL as a backend: its connections, and how a transaction outlives the loss of one.

Promise: a commit that returned is on the server's disk (`synchronous_commit` is never off). A transaction whose
connection was lost is run again within `timeout`, so its work has to leave the same rows when run twice, or be
asked for with `once`. One connection writes, at most four others read; used from one event loop.
"""

from __future__ import annotations

import logging
import ssl
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import asyncpg  # type: ignore[import-untyped]
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from sidecar.store.backend import Fault
from sidecar.store.patience import Patience
from sidecar.store.postgres_errors import describe, try_again
from sidecar.store.postgres_url import PostgresUrl
from sidecar.store.protocol import StoreError

log = logging.getLogger(__name__)

T = TypeVar("T")

_READERS = 4
_OLDEST = 130000
"""`server_version_num` of the oldest server with what is used here (`pg_xact_status` of a 64-bit id)."""

_SET_UP = """
SELECT current_setting('server_version_num')::int, current_setting('server_encoding'), current_setting('fsync'),
  set_config('idle_in_transaction_session_timeout', '{milliseconds}', false),
  current_setting('synchronous_commit'),
  CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', false) END
"""


@dataclass(slots=True)
class _Attempted[R]:
    """A transaction that reached its COMMIT, the outcome of which may be unknown."""

    transaction_id: str
    result: R


class PostgresBackend:
    """One database; connects on first use."""

    def __init__(self, url: PostgresUrl, timeout: float) -> None:
        """`timeout`: seconds that an attempt may take, and for which attempts go on while the server is away."""
        self._url, self._timeout = url, timeout
        self._writes = self._engine(1, "READ COMMITTED")
        self._reads = self._engine(_READERS, "REPEATABLE READ")
        event.listen(self._writes.sync_engine, "connect", self._on_connect)
        event.listen(self._reads.sync_engine, "connect", _on_connect_to_read)
        self._warned = False
        self._patience = {
            engine: Patience(timeout, try_again, self.describe) for engine in (self._writes, self._reads)
        }

    @property
    def write_engine(self) -> Engine:
        """The engine of the only connection that writes."""
        return self._writes.sync_engine

    async def prepare(self, read_only: bool) -> None:
        """Nothing: the database has to be there."""

    async def write(self, work: Callable[[Connection], T], *, once: bool = False) -> T:
        """Run `work` in a transaction.

        `once`: `work` is no second time committed, not even where the outcome of the first COMMIT was lost: its own
        result is returned if that took place. Costs two round trips."""
        before: _Attempted[T] | None = None

        async def attempt() -> T:
            nonlocal before
            async with _connected(self._writes) as connection:
                if before is not None and await _took_place(connection, before.transaction_id):
                    return before.result
                before = None
                result = await connection.run_sync(work)
                if once:
                    before = _Attempted(await _transaction_id(connection), result)
                await connection.commit()
                return result

        return await self._patience[self._writes].run(attempt)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` on a snapshot."""

        async def attempt() -> T:
            async with _connected(self._reads) as connection:
                return await connection.run_sync(work)

        return await self._patience[self._reads].run(attempt)

    def describe(self, error: BaseException) -> Fault:
        """What an exception says, by PostgreSQL's SQLSTATE."""
        fault = describe(self._url.place, error)
        return Fault(self._url.without_secrets(fault.message), fault.environmental, fault.worth_splitting)

    async def dispose(self) -> None:
        """Close all connections."""
        await self._writes.dispose()
        await self._reads.dispose()

    def _engine(self, connections: int, isolation: Any) -> AsyncEngine:
        arguments: dict[str, Any] = {"async_creator_fn": self._connect}
        if not self._url.named_statements:
            arguments |= {"prepared_statement_cache_size": 0, "prepared_statement_name_func": _new_name}
        return create_async_engine(
            "postgresql+asyncpg://",
            connect_args=arguments,
            isolation_level=isolation,
            pool_size=connections,
            max_overflow=0,
            pool_timeout=2 * self._timeout,
            hide_parameters=True,
        )

    async def _connect(self) -> Any:
        cached = 100 if self._url.named_statements else 0
        try:
            return await asyncpg.connect(self._url.dsn, timeout=self._timeout, statement_cache_size=cached)
        except (ValueError, asyncpg.exceptions.ClientConfigurationError) as error:
            if isinstance(error, ssl.SSLError):  # one of its kinds is a ValueError
                raise
            message = self._url.without_secrets(str(error))
            raise StoreError(f"{self._url.place}: the URL is wrong ({message})") from None

    def _on_connect(self, connection: Any, _record: object) -> None:
        try:
            self._set_up(connection)
        except BaseException:
            connection.close()  # the pool does not close what failed here
            raise

    def _set_up(self, connection: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(_SET_UP.format(milliseconds=round(3000 * self._timeout)))
        version, encoding, fsync, _, synchronous, _ = cursor.fetchone()
        cursor.close()
        connection.commit()  # without it, the settings would be rolled back
        if version < _OLDEST:
            raise StoreError(
                f"{self._url.place}: server version {version} is too old; 13 is the first that will do"
            )
        if encoding != "UTF8":
            raise StoreError(
                f"{self._url.place}: its encoding is {encoding}; create a database with ENCODING 'UTF8'"
            )
        if synchronous == "off" and not self._url.named_statements:
            raise StoreError(
                f"{self._url.place}: synchronous_commit is off, and behind a pooler it cannot be set here: "
                "ALTER ROLE ... SET synchronous_commit = on"
            )
        if fsync == "off" and not self._warned:
            self._warned = True
            log.warning("%s: fsync is off: a crash of its machine loses what was acknowledged", self._url.place)


def _on_connect_to_read(connection: Any, _record: object) -> None:
    connection.readonly = True


@asynccontextmanager
async def _connected(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A connection of the engine's; not used again after an error that another one may not have."""
    async with engine.connect() as connection:
        try:
            yield connection
        except BaseException as error:
            if not isinstance(error, Exception) or try_again(error):
                await connection.invalidate()
            raise


async def _transaction_id(connection: AsyncConnection) -> str:
    return str(await connection.scalar(text("SELECT pg_current_xact_id()::text")))


async def _took_place(connection: AsyncConnection, transaction_id: str) -> bool:
    """Whether a transaction was committed. Raises `TimeoutError` while it is open."""
    query = text("SELECT pg_xact_status(CAST(CAST(:id AS text) AS xid8))")
    status = await connection.scalar(query, {"id": transaction_id})
    if status == "in progress":
        raise TimeoutError("the transaction whose connection was lost is still open")
    return bool(status == "committed")


def _new_name() -> str:
    """A name that no other user of a pooler's connection has given a statement."""
    return f"tito_{uuid.uuid4().hex}"
