"""A segment as JSON, array by array: no array is ever whole in memory, and no message is parsed.

One event loop; pieces are small enough (a few milliseconds) for others to run in between.
"""

from __future__ import annotations

import binascii
from collections.abc import AsyncIterator, Iterable, Iterator

import numpy as np
import numpy.typing as npt
import orjson

from sidecar.sessions.blob_reader import BlobReader
from sidecar.sessions.finalized import FinalizedSession
from sidecar.sessions.segment_document import Blob, Document, segment_document
from sidecar.tito.routed_rows import blob_key
from sidecar.tito.segment_columns import logprobs, loss_mask, tokens, version_runs
from sidecar.tito.segment_rows import SegmentRows, segment_rows
from sidecar.tito.segments import SegmentPlan

_NUMBERS = 2**14
_ROW_BYTES = 3 * 2**16
"""Bytes of rows encoded at once; a multiple of three, so that pieces of base64 can be joined."""


async def segment_json(session: FinalizedSession, index: int, blobs: BlobReader) -> AsyncIterator[bytes]:
    """The segment as one JSON object. Raises `StoreError`."""
    plan = session.plans[index]
    rows = segment_rows(plan.nodes, plan.trained)
    document = segment_document(session, index, rows_missing=rows.missing if rows is not None else 0)
    async for piece in document_bytes(session, document, blobs):
        yield piece
    for name, pieces in _arrays(plan):
        yield b',"%b":[' % name.encode()
        for piece in pieces:
            yield piece
        yield b"]"
    if rows is not None:
        head = {"dtype": np.dtype(f"u{rows.itemsize}").name, "shape": [rows.total, rows.layers, rows.topk]}
        yield b',"routed_experts":' + orjson.dumps(head)[:-1] + b',"data":"'
        carry = b""
        async for raw in row_bytes(session, rows, blobs):
            whole = len(carry) + len(raw) - (len(carry) + len(raw)) % 3
            joined = carry + raw
            yield binascii.b2a_base64(joined[:whole], newline=False)
            carry = joined[whole:]
        yield binascii.b2a_base64(carry, newline=False) + b'"}'
    yield b"}"


async def document_bytes(session: FinalizedSession, document: Document, blobs: BlobReader) -> AsyncIterator[bytes]:
    """A document with its blobs put in. Raises `StoreError`."""
    fetched = blobs.each(session.row.session_id, [piece.key for piece in document if isinstance(piece, Blob)])
    for piece in document:
        yield await anext(fetched) if isinstance(piece, Blob) else piece


async def row_bytes(session: FinalizedSession, rows: SegmentRows, blobs: BlobReader) -> AsyncIterator[bytes]:
    """The rows of a segment as bytes in C order, one step's blob after the other. Raises `StoreError`."""
    for piece in rows.pieces:
        blob = await blobs.one(session.row.session_id, blob_key(piece.step_id))
        for part in _sliced(piece.array(blob, rows.itemsize)):
            yield part
    for part in _sliced(rows.placeholders()):
        yield part


def _sliced(array: npt.NDArray[np.unsignedinteger]) -> Iterator[bytes]:
    if not array.size:
        return
    raw = memoryview(np.ascontiguousarray(array)).cast("B")
    for at in range(0, len(raw), _ROW_BYTES):
        yield bytes(raw[at : at + _ROW_BYTES])


def _arrays(plan: SegmentPlan) -> Iterator[tuple[str, Iterator[bytes]]]:
    yield "tokens", _joined(_numbers(tokens(plan)))
    yield "full_loss_mask", _joined(_numbers(loss_mask(plan)))
    # As doubles: the shortest text of a float32 is that of another double.
    yield "full_logprobs", _joined(_numbers(logprobs(plan), np.dtype(np.float64)))
    yield "full_versions", _joined(_repeated(version_runs(plan)))


def _numbers(
    parts: Iterable[npt.NDArray[np.generic]], dtype: np.dtype[np.generic] | None = None
) -> Iterator[bytes]:
    for part in parts:
        for at in range(0, len(part), _NUMBERS):
            piece = part[at : at + _NUMBERS]
            piece = piece if dtype is None else piece.astype(dtype)
            yield orjson.dumps(piece, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]


def _repeated(runs: Iterable[tuple[str, int]]) -> Iterator[bytes]:
    for version, length in runs:
        text = orjson.dumps(version)
        for at in range(0, length, _NUMBERS):
            yield b",".join([text] * min(_NUMBERS, length - at))


def _joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    between = b""
    for piece in pieces:
        yield between + piece
        between = b","
