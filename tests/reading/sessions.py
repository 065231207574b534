"""Finalized sessions to read, put into a store without an engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import orjson

from sidecar.store.protocol import SessionRow, Store
from sidecar.tito.fingerprint import digest
from sidecar.tito.records import RoutedRows, StepRecord, VersionSpan
from sidecar.tito.routed_rows import blob_key
from tests.tito.builders import step

SHAPE = (4, 2)
"""Layers and experts per token of rows."""


def row(session_id: str, **changes: Any) -> SessionRow:
    """A finalized session's row."""
    values: dict[str, Any] = {
        "session_id": session_id,
        "instance_id": "task",
        "run_id": None,
        "metadata": {"naïve": "✓"},
        "sampling": {},
        "state": "finalized",
        "created_at": 1.0,
        "updated_at": 2.0,
        "finalization": {"reply": {}, "label": {"gold": 1}, "reward": 0.5, "anchor_step_id": None},
    }
    return SessionRow(**(values | changes))


def message(text: str, role: str = "user") -> tuple[bytes, bytes]:
    """A message's key and JSON."""
    data = orjson.dumps({"role": role, "content": text})
    return digest(data), data


async def put_step(
    store: Store,
    session_id: str,
    name: str,
    parent: str | None,
    text: str,
    *,
    rows: RoutedRows | None = None,
    **changes: Any,
) -> StepRecord:
    """A step whose request ends in one new message."""
    key, data = message(text)
    record = step(name, parent, session_id=session_id, message_hashes=(key,), **changes)
    blobs = {key: data}
    if rows is not None:
        record.routed_rows = rows
        values = np.arange((rows.end - rows.start) * rows.layers * rows.topk) % 7
        blobs[blob_key(name)] = values.astype(f"<u{rows.itemsize}").tobytes()
    await store.save_step(record, blobs)
    return record


async def put_session(
    store: Store, session_id: str, steps: int = 2, *, replay: bool = False, **changes: Any
) -> None:
    """A session of so many steps of five tokens in one segment, the last in two versions; with rows for all but the
    last token if `replay`, in one byte at first and then in two. `changes` are of its row."""
    await store.save_session(row(session_id, **changes))
    parent = None
    for number in range(steps):
        name = f"{session_id}.{number}"
        whole = (VersionSpan(0, 2, "v1"),)
        split = (VersionSpan(0, 1, "v1"), VersionSpan(1, 2, "v2"))
        start, end = max(0, 5 * number - 1), 5 * number + 4
        await put_step(
            store,
            session_id,
            name,
            parent,
            f"message {number} «é»",
            rows=RoutedRows(start, end, *SHAPE, 2 if number else 1) if replay else None,
            sequence=number,
            context_ids=[10 * number + i for i in range(1, 4)],
            message_count=2 * (number + 1),
            version_spans=split if number == steps - 1 else whole,
        )
        parent = name


async def put_branches(
    store: Store, session_id: str, *, shared: int, branches: int, own: int, text: str = "x"
) -> int:
    """A session of `branches` segments that share a prompt of `shared` tokens; the tokens of all segments."""
    await store.save_session(row(session_id))
    prompt = np.arange(shared, dtype=np.int32) % 150_000
    await put_step(store, session_id, "root", None, text, sequence=0, context_ids=prompt, output_ids=[7, 8])
    for number in range(branches):
        await put_step(
            store,
            session_id,
            f"branch-{number}",
            "root",
            f"{number} {text}",
            sequence=number + 1,
            context_ids=np.full(own, number, np.int32),
            output_ids=[number, 9],
            message_count=4,
        )
    return branches * (shared + 2 + own + 2)


async def joined(pieces: AsyncIterator[bytes]) -> bytes:
    """A whole body."""
    return b"".join([piece async for piece in pieces])
