"""The segments of a stored session, one at a time, as rows.

Promise: reads the store only; memory is bounded by the session's ids and its largest segment. One event loop.
"""

from __future__ import annotations

import binascii
from collections.abc import AsyncIterator
from dataclasses import dataclass

import numpy as np
import orjson

from sidecar.export.rows import Known, Row, segment_row
from sidecar.sessions.blob_reader import BlobReader
from sidecar.sessions.finalized import FinalizedSession, plan_stored
from sidecar.sessions.segment_document import segment_head
from sidecar.sessions.segment_json import row_bytes
from sidecar.store.listing import SessionSummary
from sidecar.store.protocol import Store
from sidecar.tito.history import history_of
from sidecar.tito.segment_columns import logprobs, loss_mask, tokens, version_runs
from sidecar.tito.segment_rows import SegmentRows, segment_rows
from sidecar.tito.segments import NoSteps

_KEPT_BLOBS = 8 << 20


@dataclass(frozen=True, slots=True)
class Finalization:
    """Of a finalized session: its id, and how many segments it has."""

    finalization_id: str
    segments: int


def finalization_of(summary: SessionSummary) -> Finalization | None:
    """What the finalization recorded; None for a session that is not finalized."""
    if summary.finalization is None:
        return None
    reply = summary.finalization["reply"]
    return Finalization(reply["finalization_id"], reply["num_segments"])


async def new_rows(store: Store, session_id: str, known: Known) -> AsyncIterator[Row]:
    """Rows of the session's segments that are not known; none if it is gone, discarded or without a step. Raises
    `StoreError`."""
    stored = await store.load_session(session_id)
    if stored is None or stored.row.state not in ("open", "finalized"):
        return
    try:
        session = plan_stored(stored)
    except NoSteps:
        return
    finalization = stored.row.finalization
    finalization_id = finalization["reply"]["finalization_id"] if finalization is not None else None
    revision = finalization_id or f"{len(session.trajectory)}-steps"
    blobs = BlobReader(store, _KEPT_BLOBS)
    for index in known.missing(session_id, revision, len(session.plans)):
        yield await _row(session, index, blobs, revision=revision, finalization_id=finalization_id)


async def _row(
    session: FinalizedSession, index: int, blobs: BlobReader, *, revision: str, finalization_id: str | None
) -> Row:
    plan = session.plans[index]
    rows = segment_rows(plan.nodes, plan.trained)
    tools = plan.leaf.record.tools_hash
    versions: list[str] = []
    for version, length in version_runs(plan):
        versions += [version] * length
    return segment_row(
        segment_head(session, index, rows_missing=rows.missing if rows is not None else 0),
        arrays={
            "tokens": np.concatenate(list(tokens(plan))),
            "full_loss_mask": np.concatenate(list(loss_mask(plan))),
            "full_logprobs": np.concatenate(list(logprobs(plan))),
            "full_versions": versions,
        },
        messages=await _messages(session, index, blobs),
        tools=b"null" if tools is None else await blobs.one(session.row.session_id, tools),
        experts=b"null" if rows is None else await _experts(session, rows, blobs),
        revision=revision,
        finalization_id=finalization_id,
    )


async def _messages(session: FinalizedSession, index: int, blobs: BlobReader) -> bytes:
    """The segment's messages as a JSON array."""
    history = history_of(session.plans[index].leaf)
    fetched = blobs.each(session.row.session_id, [one.key for one in history if one.data is None])
    return b"[" + b",".join([await anext(fetched) if one.data is None else one.data for one in history]) + b"]"


async def _experts(session: FinalizedSession, rows: SegmentRows, blobs: BlobReader) -> bytes:
    """The segment's rows as `/trajectory/read` sends them in JSON."""
    raw = b"".join([piece async for piece in row_bytes(session, rows, blobs)])
    head = {"dtype": np.dtype(f"u{rows.itemsize}").name, "shape": [rows.total, rows.layers, rows.topk]}
    return orjson.dumps(head)[:-1] + b',"data":"' + binascii.b2a_base64(raw, newline=False) + b'"}'
