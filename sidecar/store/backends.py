"""From a store's URL to its database.

Promise: nothing is opened or created before `Location.open`; what one database needs is imported only for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from sidecar.store.backend import Backend
from sidecar.store.postgres_url import SCHEMES, read_url
from sidecar.store.protocol import StoreError
from sidecar.store.sqlite import SqliteBackend, sqlite_path


@dataclass(frozen=True, slots=True)
class Location:
    """Where a store is. `open` may be called again and again, in any event loop: each backend has connections of
    its own and connects on first use."""

    place: str
    """For messages: without user and password."""
    open: Callable[[], Backend]


def locate(url: str, *, busy_timeout: float = 5.0, timeout: float = 10.0) -> Location:
    """The database that `url` names: `sqlite:///PATH` or `postgresql://...` (see `read_url`).

    `busy_timeout`: seconds to wait for a lock that another process holds on a SQLite file. `timeout`: seconds for
    which a call to a server that cannot be reached is tried again. Raises `StoreError`, also if the driver is not
    installed."""
    scheme = url.partition("://")[0] if "://" in url else url[:40]
    if scheme.partition("+")[0] == "sqlite":
        path = sqlite_path(url)
        return Location(str(path), lambda: SqliteBackend(path, busy_timeout))
    if scheme not in SCHEMES:
        raise StoreError(
            f"{scheme} is not supported; use sqlite:///PATH or postgresql://USER:PASSWORD@HOST/DATABASE"
        )
    address = read_url(url)
    if find_spec("asyncpg") is None:
        raise StoreError(f"{address.place} needs asyncpg, which is not installed; install tito-sidecar[postgres]")

    def open_postgres() -> Backend:
        from sidecar.store.postgres import PostgresBackend

        return PostgresBackend(address, timeout)

    return Location(address.place, open_postgres)
