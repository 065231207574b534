"""The store: what has to survive the process, behind one Protocol.

`open_store(url)` makes one; see `protocol.py` for the promise.
"""

from __future__ import annotations

from sidecar.store.backends import locate
from sidecar.store.protocol import Store
from sidecar.store.sql import SqlStore

__all__ = ["open_store", "place_of"]


def open_store(url: str, *, read_only: bool = False, timeout: float = 10.0) -> Store:
    """The store that `url` names, not yet started: `sqlite:///PATH` or `postgresql://...`. Raises `StoreError` for
    other URLs. `timeout`: seconds for which a call to a server that cannot be reached is tried again.

    `read_only` is for commands beside a running sidecar: nothing is created, every write is refused."""
    return SqlStore(url, read_only=read_only, timeout=timeout)


def place_of(url: str) -> str:
    """What may be shown of a store's URL: no user, no password. Raises `StoreError` for a URL that names none."""
    return locate(url).place
