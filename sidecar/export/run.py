"""An export from beginning to end: beside a running sidecar, repeatable, with bounded memory.

Promise: a segment whose key the target has is not written again, and one that it lacks is written whatever was
exported before; a kill loses at most the part that was being written. The store is only read. One event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sidecar.export.errors import ExportError
from sidecar.export.formats import Format, Writer
from sidecar.export.progress import Report
from sidecar.export.rows import Known, Row
from sidecar.export.segments import finalization_of, new_rows
from sidecar.export.target import Target
from sidecar.store import open_store
from sidecar.store.listing import SessionFilter, SessionSummary, count_sessions, each_session
from sidecar.store.protocol import Store, StoreError

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Totals:
    """What an export did. `failed`: sessions that could not be read, with the reason."""

    sessions: int = 0
    segments: int = 0
    unchanged: int = 0
    parts: int = 0
    failed: list[str] = field(default_factory=list)


async def export(
    store_url: str,
    target: Target,
    form: Format,
    chosen: SessionFilter,
    *,
    part_bytes: int,
    show: Callable[[int], AbstractContextManager[Report]],
) -> Totals:
    """Add to the target what it lacks of the chosen sessions. Raises `StoreError`, `ExportError`."""
    store = open_store(store_url, read_only=True)
    await store.start()
    try:
        with target:
            known = await asyncio.to_thread(_known, target)
            with show(await count_sessions(store, chosen)) as report, _Parts(target, form, part_bytes) as parts:
                totals = await _all_sessions(store, chosen, known, parts, report)
                await asyncio.to_thread(parts.complete)
                totals.parts = parts.count
                return totals
    finally:
        await store.close()


def _known(target: Target) -> Known:
    known = Known()
    for key in target.stored_keys():
        known.add(*key)
    return known


async def _all_sessions(store: Store, chosen: SessionFilter, known: Known, parts: _Parts, report: Report) -> Totals:
    totals, looked_at = Totals(), 0
    async for summary in each_session(store, chosen):
        added = 0
        try:
            async for row in _rows(store, summary, known):
                await asyncio.to_thread(parts.add, row)
                known.add(row["session_id"], row["revision"], row["segment_index"])
                added += 1
        except StoreError as error:
            if not await _is_gone(store, summary.session_id):
                totals.failed.append(f"session {summary.session_id!r}: {error}")
        totals.segments += added
        totals.sessions += bool(added)
        totals.unchanged += not added
        looked_at += 1
        report(looked_at, totals.segments, parts.count)
    return totals


async def _rows(store: Store, summary: SessionSummary, known: Known) -> AsyncIterator[Row]:
    """New rows of a session; one whose segments are all known is not read."""
    finalization = finalization_of(summary)
    if finalization is not None and not known.missing(
        summary.session_id, finalization.finalization_id, finalization.segments
    ):
        return
    async for row in new_rows(store, summary.session_id, known):
        yield row


async def _is_gone(store: Store, session_id: str) -> bool:
    """Retention or a discard may take a session while it is read."""
    stored = await store.load_session(session_id)
    return stored is None or stored.row.state in ("discarded", "expired")


class _Parts:
    """Rows into parts of about `part_bytes`. One that was not completed when the block is left is dropped."""

    def __init__(self, target: Target, form: Format, part_bytes: int) -> None:
        self._target, self._form, self._part_bytes = target, form, part_bytes
        self._writer: Writer | None = None
        self._path: Path
        self._spool = ExitStack()
        self.count = 0

    def __enter__(self) -> _Parts:
        return self

    def __exit__(self, *_: object) -> None:
        self._spool.close()

    def add(self, row: Row) -> None:
        """Raises `ExportError`."""
        with self._local_writes():
            if self._writer is None:
                self._path = self._spool.enter_context(self._target.spool())
                self._writer = self._form.writer(self._path)
            self._writer.add(row)
        if self._writer.size >= self._part_bytes:
            self.complete()

    def complete(self) -> None:
        """Add the part to the target. Raises `ExportError`."""
        if self._writer is not None:
            with self._local_writes():
                self._writer.close()
            self._writer = None
            self._target.put(self._path)
            self._spool.close()
            self.count += 1

    @contextmanager
    def _local_writes(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ExportError(
                f"--to is {self._target.shown}: a part cannot be written on this machine: {error}; make room, for "
                "a target elsewhere in $TMPDIR"
            ) from error
