"""The body of a `/trajectory/read` reply: all segments of some finalized sessions, as JSON or as safetensors.

Sessions are loaded one after the other, segments are sent part by part: memory is bounded by the largest session
and two fixed allowances, whatever the body's length. One event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson

from sidecar.sessions.blob_reader import BlobReader
from sidecar.sessions.finalized import FinalizedSession, load_finalized
from sidecar.sessions.segment_json import segment_json
from sidecar.sessions.segment_tensors import ALIGNMENT, segment_tensors, tensor_bytes
from sidecar.store.protocol import Store

log = logging.getLogger(__name__)

FORMAT = "tito-trajectory-1"
"""Names the layout in the header; another number for one that readers of this would misread."""

_KEPT_SESSIONS = 32 * 2**20
_KEPT_BLOBS = 16 * 2**20
"""Bytes that are kept of what was read to know the body's length, so that it need not be read again."""
_CHUNK = 2**16
_LARGEST = 2**18


class TrajectoryBody:
    """One reply. `fields` are the reply's own, all but `data`."""

    def __init__(self, store: Store, session_ids: Sequence[str], fields: dict[str, Any]) -> None:
        self._store = store
        self._ids = session_ids
        self._fields = fields
        self._blobs = BlobReader(store, _KEPT_BLOBS)
        self._kept: dict[str, FinalizedSession] = {}
        self._room = _KEPT_SESSIONS

    async def json(self) -> AsyncIterator[bytes]:
        """The body as one JSON object. Raises what stops it, so that the connection ends before the body does."""
        yield orjson.dumps(self._fields)[:-1] + b',"data":['
        first = True
        for session_id in self._ids:
            session = await self._load(session_id)
            for index in range(len(session.plans)):
                yield b"" if first else b","
                first = False
                async for piece in segment_json(session, index, self._blobs):
                    yield piece
            self._forget(session_id)
        yield b"]}"

    async def binary(self) -> tuple[int, AsyncIterator[bytes]]:
        """The length of the body as safetensors, and the body. Raises `RequestError`, `StoreError`."""
        metadata = {"format": FORMAT, "reply": orjson.dumps(self._fields).decode()}
        header: dict[str, Any] = {"__metadata__": metadata}
        ends: list[int] = []
        end = 0
        for session_id in self._ids:
            session = await self._load(session_id)
            for index in range(len(session.plans)):
                for tensor in await segment_tensors(session, index, self._blobs):
                    start, end = end, end + tensor.nbytes
                    header[f"{len(ends)}.{tensor.name}"] = {
                        "dtype": tensor.dtype,
                        "shape": tensor.shape,
                        "data_offsets": (start, end),
                    }
                ends.append(end)
        text = orjson.dumps(header)
        text += b" " * (-len(text) % ALIGNMENT)
        return 8 + len(text) + end, self._binary_parts(len(text).to_bytes(8, "little") + text, ends)

    async def _binary_parts(self, header: bytes, ends: Sequence[int]) -> AsyncIterator[bytes]:
        yield header
        sent = at = 0
        for session_id in self._ids:
            session = await self._load(session_id)
            for index in range(len(session.plans)):
                async for piece in tensor_bytes(session, index, self._blobs):
                    sent += len(piece)
                    yield piece
                if not 0 <= ends[at] - sent < ALIGNMENT:
                    raise ValueError(
                        f"segment {index} of session {session_id!r} is not as long as announced: it ends at {sent} "
                        f"instead of {ends[at]}; was the session changed meanwhile?"
                    )
                yield b" " * (ends[at] - sent)
                sent = ends[at]
                at += 1
            self._forget(session_id)

    async def _load(self, session_id: str) -> FinalizedSession:
        session = self._kept.get(session_id) or await load_finalized(self._store, session_id)
        if session_id not in self._kept and session.held_bytes <= self._room:
            self._kept[session_id] = session
            self._room -= session.held_bytes
        return session

    def _forget(self, session_id: str) -> None:
        session = self._kept.pop(session_id, None)
        self._room += session.held_bytes if session is not None else 0
        self._blobs.forget(session_id)


class BrokenOff(Exception):  # noqa: N818 - it is known to the log already
    """A body that ended before its end."""


async def sent_in_chunks(pieces: AsyncIterator[bytes], what: str) -> AsyncIterator[bytes]:
    """The pieces joined or cut to a fit size; other tasks run in between. Raises `BrokenOff`, once it is logged."""
    waiting: list[bytes] = []
    size = 0
    try:
        async for piece in pieces:
            for at in range(0, len(piece), _LARGEST):
                part = piece[at : at + _LARGEST] if len(piece) > _LARGEST else piece
                waiting.append(part)
                size += len(part)
                if size >= _CHUNK:
                    yield b"".join(waiting)
                    waiting, size = [], 0
                    await asyncio.sleep(0)
        yield b"".join(waiting)
    except Exception as error:
        log.error("%s broke off in the middle: %s: %s", what, type(error).__name__, error)
        raise BrokenOff from error
