"""The store: what has to survive the process, behind one Protocol.

`open_store(url)` makes one; see `protocol.py` for the promise.
"""

from __future__ import annotations

from sidecar.store.protocol import Store
from sidecar.store.sql import SqlStore

__all__ = ["open_store"]


def open_store(url: str, *, read_only: bool = False) -> Store:
    """The store that `url` names, not yet started: `sqlite:///PATH`. Raises `StoreError` for other URLs.

    `read_only` is for commands beside a running sidecar: nothing is created, every write is refused."""
    return SqlStore(url, read_only=read_only)
