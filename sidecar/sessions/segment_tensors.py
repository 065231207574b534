"""A segment as tensors of a safetensors body, whose sizes are known before anything is sent.

`tokens` I32, `full_logprobs` F32, `routed_experts` as stored (U8, U16 or U32, where there are any),
`full_loss_mask` BOOL, and `segment`: U8, the segment's other fields as JSON, with `full_versions` as spans, padded
with blanks so that the next segment begins at a multiple of 8 bytes. One event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import orjson

from sidecar.sessions.blob_reader import BlobReader
from sidecar.sessions.finalized import FinalizedSession
from sidecar.sessions.segment_document import Blob, Document, segment_document
from sidecar.sessions.segment_json import document_bytes, row_bytes
from sidecar.tito.segment_columns import logprobs, loss_mask, token_count, tokens, version_spans
from sidecar.tito.segment_rows import segment_rows

ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the header; `nbytes` in the body."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


async def segment_tensors(session: FinalizedSession, index: int, blobs: BlobReader) -> list[Tensor]:
    """The segment's tensors in the order of `tensor_bytes`. Raises `StoreError`."""
    plan = session.plans[index]
    count = token_count(plan)
    found = [Tensor("tokens", "I32", (count,), 4 * count), Tensor("full_logprobs", "F32", (count,), 4 * count)]
    rows = segment_rows(plan.nodes, plan.trained)
    if rows is not None:
        shape = (rows.total, rows.layers, rows.topk)
        found.append(Tensor("routed_experts", f"U{8 * rows.itemsize}", shape, rows.nbytes))
    found.append(Tensor("full_loss_mask", "BOOL", (count,), count))
    document = _document(session, index)
    keys = [piece.key for piece in document if isinstance(piece, Blob)]
    sizes = await blobs.sizes(session.row.session_id, keys)
    length = sum(sizes[piece.key] if isinstance(piece, Blob) else len(piece) for piece in document)
    length += -(length + sum(tensor.nbytes for tensor in found)) % ALIGNMENT
    return [*found, Tensor("segment", "U8", (length,), length)]


async def tensor_bytes(session: FinalizedSession, index: int, blobs: BlobReader) -> AsyncIterator[bytes]:
    """The bytes of the segment's tensors, without the padding at the end. Raises `StoreError`."""
    plan = session.plans[index]
    for column in (tokens(plan), logprobs(plan)):
        for part in column:
            yield part.tobytes()
    rows = segment_rows(plan.nodes, plan.trained)
    if rows is not None:
        async for piece in row_bytes(session, rows, blobs):
            yield piece
    for mask in loss_mask(plan):
        yield mask.tobytes()
    async for piece in document_bytes(session, _document(session, index), blobs):
        yield piece


def _document(session: FinalizedSession, index: int) -> Document:
    plan = session.plans[index]
    rows = segment_rows(plan.nodes, plan.trained)
    document = segment_document(session, index, rows_missing=rows.missing if rows is not None else 0)
    versions = {"length": token_count(plan), "spans": version_spans(plan)}
    return [*document, b',"full_versions":' + orjson.dumps(versions) + b"}"]
