"""Writes as data, and the SQL of a batch of them.

Promise: a batch leaves the database as its writes would one after the other, in few statements. Building is
pure; `Statements.apply` runs inside one transaction of the caller.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, auto

from sqlalchemy import Connection, Insert, Table, UpdateBase, bindparam, delete, update
from sqlalchemy.dialects import postgresql, sqlite

from sidecar.store import rows, schema
from sidecar.store.ownership import Fence, OwnershipSql
from sidecar.store.packed import Packer
from sidecar.store.protocol import PauseRow, SessionRow, StoreError
from sidecar.tito.records import StepRecord

_ROW_BYTES = 1024
"""What a row counts in the bounds of queue and batch besides its variable parts."""


class Op(IntEnum):
    """Kinds of statement, in the order in which a group runs them: rows that others refer to come first."""

    CREATE_SESSION = auto()
    SAVE_SESSION = auto()
    SAVE_BLOB = auto()
    SAVE_STEP = auto()
    MARK_DELIVERED = auto()
    SAVE_PAUSE = auto()
    DELETE_PAUSE = auto()
    DELETE_STEPS = auto()
    DELETE_BLOBS = auto()


@dataclass(slots=True)
class Write:
    """What one caller wants written."""

    what: str
    """Names it in errors."""
    parts: tuple[tuple[Op, list[rows.Row]], ...]
    size: int
    """Bytes, roughly."""
    step: tuple[str, str] | None = None
    """Session and step id, for the writes whose order matters among those of one step."""
    alone: bool = False
    """Not to be grouped with others, because it deletes or its row count is the result."""
    deleted: int = 0
    """Steps deleted, once applied."""
    fence: Fence | None = None
    """Write only while this holds."""
    refused: StoreError | None = None
    """Why the fence did not hold, once applied: nothing of this was written."""


def session_write(record: SessionRow, fence: Fence | None = None) -> Write:
    """Insert or replace a session."""
    row = rows.session_row(record)
    size = _ROW_BYTES + len(row["metadata"]) + len(row["sampling"]) + len(row["finalization"] or "")
    return Write(f"session {record.session_id}", ((Op.SAVE_SESSION, [row]),), size, fence=fence)


def create_write(record: SessionRow, fence: Fence) -> Write:
    """Insert a session with its owner, unless there is one: then the fence refuses it."""
    write = session_write(record, fence)
    owned = {**rows.session_row(record), "owner": fence.lease.sidecar_id, "epoch": fence.epoch}
    write.parts = ((Op.CREATE_SESSION, [owned]),)
    return write


def step_write(
    packer: Packer, record: StepRecord, blobs: Mapping[bytes, bytes], fence: Fence | None = None
) -> Write:
    """Insert or replace a step; insert the blobs that its session lacks."""
    row = rows.step_row(record, packer)
    blob_rows = rows.blob_rows(record.session_id, blobs, packer)
    size = _ROW_BYTES + sum(len(row[name]) for name in ("reply", "context_ids", "output_ids", "output_logprobs"))
    size += sum(len(row[name]) for name in ("message_hashes", "prefix", "version_spans", "sampling", "extra"))
    size += sum(len(blob["data"]) for blob in blob_rows)
    return Write(
        f"step {record.step_id} of session {record.session_id}",
        ((Op.SAVE_BLOB, blob_rows), (Op.SAVE_STEP, [row])),
        size,
        step=(record.session_id, record.step_id),
        fence=fence,
    )


def delivered_write(session_id: str, step_id: str, fence: Fence | None = None) -> Write:
    """Set `delivered` of a step."""
    row = {"in_session": session_id, "in_step": step_id}
    what = f"delivered mark of step {step_id} of session {session_id}"
    return Write(what, ((Op.MARK_DELIVERED, [row]),), _ROW_BYTES, step=(session_id, step_id), fence=fence)


def discard_write(record: SessionRow, fence: Fence | None = None) -> Write:
    """Replace a session by its tombstone and delete its steps and blobs."""
    write = session_write(record, fence)
    row = {"in_session": record.session_id}
    write.what = f"discard of session {record.session_id}"
    write.parts += ((Op.DELETE_STEPS, [row]), (Op.DELETE_BLOBS, [row]))
    write.alone = True
    return write


def pause_write(record: PauseRow) -> Write:
    """Insert or replace a pause."""
    parts = ((Op.SAVE_PAUSE, [rows.pause_row(record)]),)
    return Write(f"pause {record.pause_id}", parts, _ROW_BYTES, alone=True)


def delete_pauses_write(pause_ids: Sequence[str]) -> Write:
    """Delete pauses."""
    parts = ((Op.DELETE_PAUSE, [{"in_pause": pause_id} for pause_id in pause_ids]),)
    return Write(f"deletion of {len(pause_ids)} pauses", parts, _ROW_BYTES, alone=True)


class Statements:
    """The statements of one SQL dialect, built once."""

    def __init__(self, dialect: str) -> None:
        in_session = schema.step.c.session_id == bindparam("in_session")
        self._ownership = OwnershipSql(dialect)
        self._by_op: dict[Op, UpdateBase] = {
            Op.CREATE_SESSION: insert_or_ignore(dialect, schema.session),
            Op.SAVE_SESSION: insert_or_replace(dialect, schema.session, apart=schema.SESSION_APART),
            Op.SAVE_BLOB: insert_or_ignore(dialect, schema.blob),
            Op.SAVE_STEP: insert_or_replace(dialect, schema.step),
            Op.MARK_DELIVERED: update(schema.step)
            .where(in_session, schema.step.c.step_id == bindparam("in_step"))
            .values(delivered=True),
            Op.SAVE_PAUSE: insert_or_replace(dialect, schema.pause),
            Op.DELETE_PAUSE: delete(schema.pause).where(schema.pause.c.pause_id == bindparam("in_pause")),
            Op.DELETE_STEPS: delete(schema.step).where(in_session),
            Op.DELETE_BLOBS: delete(schema.blob).where(schema.blob.c.session_id == bindparam("in_session")),
        }

    def apply(self, connection: Connection, writes: Sequence[Write]) -> None:
        """Run a batch, but what its fence refuses. Raises what the database raises; the caller rolls back."""
        for group in _groups(self._allowed(connection, writes)):
            by_op: dict[Op, list[rows.Row]] = {}
            for write in group:
                for op, part in write.parts:
                    if op is not Op.CREATE_SESSION:  # done before
                        by_op.setdefault(op, []).extend(part)
            for op in sorted(by_op):
                self._run(connection, op, by_op[op], group[0])

    def _allowed(self, connection: Connection, writes: Sequence[Write]) -> list[Write]:
        """Create what is to be created, then ask once for every session of the batch whether it may be written."""
        fenced = [write for write in writes if write.fence is not None]
        if not fenced:
            return list(writes)
        created = [row for write in fenced for op, part in write.parts if op is Op.CREATE_SESSION for row in part]
        self._run(connection, Op.CREATE_SESSION, created, fenced[0])
        refused = self._ownership.refusals(connection, (write.fence for write in fenced if write.fence))
        for write in fenced:
            write.refused = refused.get(write.fence) if write.fence is not None else None
        return [write for write in writes if write.refused is None]

    def _run(self, connection: Connection, op: Op, op_rows: list[rows.Row], first: Write) -> None:
        if not op_rows:
            return
        # A single row is not passed as a list: drivers count the rows of an `executemany` differently.
        result = connection.execute(self._by_op[op], op_rows[0] if len(op_rows) == 1 else op_rows)
        if op is Op.DELETE_STEPS:
            first.deleted = result.rowcount


def insert_or_replace(dialect: str, table: Table, apart: Collection[str] = ()) -> Insert:
    """INSERT that overwrites all other columns of the row with an equal primary key, except those named `apart`."""
    statement = _insert(dialect, table)
    names = [column.name for column in table.c if not column.primary_key and column.name not in apart]
    changed = {name: statement.excluded[name] for name in names}
    return statement.on_conflict_do_update(index_elements=list(table.primary_key.columns), set_=changed)


def insert_or_ignore(dialect: str, table: Table) -> Insert:
    """INSERT that leaves an existing row with an equal primary key as it is."""
    return _insert(dialect, table).on_conflict_do_nothing(index_elements=list(table.primary_key.columns))


def _insert(dialect: str, table: Table) -> sqlite.Insert | postgresql.Insert:
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


def _groups(writes: Sequence[Write]) -> Iterator[list[Write]]:
    """Neighbouring writes that may be reordered by kind without another outcome."""
    group: list[Write] = []
    marked: set[tuple[str, str]] = set()
    for write in writes:
        marks = write.parts[0][0] is Op.MARK_DELIVERED
        if group and (write.alone or group[0].alone or (not marks and write.step in marked)):
            yield group
            group, marked = [], set()
        group.append(write)
        if marks and write.step is not None:
            marked.add(write.step)
    if group:
        yield group
