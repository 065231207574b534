"""Messages and other blobs of sessions, a few at a time, with a bounded memory of those that come again.

The branches of a session share most of their messages, and a body whose length is sent first is built twice. One
event loop; one reader per body.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from sidecar.store.protocol import Store

_AT_ONCE = 16
"""Blobs per query: a message has at most `--max-body` bytes, and most have a few hundred."""


class BlobReader:
    """Reads blobs of one store. What was read first is kept, up to `keep_bytes`."""

    def __init__(self, store: Store, keep_bytes: int) -> None:
        self._store = store
        self._room = keep_bytes
        self._kept: dict[tuple[str, bytes], bytes] = {}
        self._sizes: dict[tuple[str, bytes], int] = {}

    async def each(self, session_id: str, keys: Sequence[bytes]) -> AsyncIterator[bytes]:
        """The blobs of these keys, in order. Raises `StoreError` if one is missing."""
        for at in range(0, len(keys), _AT_ONCE):
            wanted = keys[at : at + _AT_ONCE]
            found = await self._find(session_id, wanted)
            for key in wanted:
                yield found[key]

    async def one(self, session_id: str, key: bytes) -> bytes:
        """A large blob, which is not kept. Raises `StoreError` if it is missing."""
        return (await self._store.read_blobs(session_id, [key]))[key]

    async def sizes(self, session_id: str, keys: Sequence[bytes]) -> dict[bytes, int]:
        """Bytes of each blob. Raises `StoreError` if one is missing."""
        unknown = [key for key in dict.fromkeys(keys) if (session_id, key) not in self._sizes]
        async for _ in self.each(session_id, unknown):
            pass
        return {key: self._sizes[session_id, key] for key in keys}

    def forget(self, session_id: str) -> None:
        """Nothing of the session is needed any more."""
        for place in [place for place in self._kept if place[0] == session_id]:
            self._room += len(self._kept.pop(place))
        for place in [place for place in self._sizes if place[0] == session_id]:
            del self._sizes[place]

    async def _find(self, session_id: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        found = {key: self._kept[session_id, key] for key in keys if (session_id, key) in self._kept}
        if missing := [key for key in keys if key not in found]:
            read = await self._store.read_blobs(session_id, missing)
            for key, data in read.items():
                self._keep((session_id, key), data)
            found |= read
        return found

    def _keep(self, place: tuple[str, bytes], data: bytes) -> None:
        self._sizes[place] = len(data)
        if place not in self._kept and len(data) <= self._room:
            self._kept[place] = data
            self._room -= len(data)
