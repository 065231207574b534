"""What ends a stored session: its expiry, the end of its tombstone, and a removal by hand.

Promise: whether a session may go is decided by the statement that takes it, so that any number of replicas may try;
each transaction touches one session and few rows, between those of the writer. An expired session is a tombstone at
once; its steps and blobs go in portions, and what a kill leaves of them the next call finds. Functions run inside a
transaction of the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    delete,
    exists,
    func,
    or_,
    select,
    text,
    tuple_,
    update,
)

from sidecar.store import schema
from sidecar.store.ownership import now_sql
from sidecar.store.protocol import StoreError

_ROWS = 64
"""Steps or blobs that one transaction deletes."""

_SESSION = schema.session.c
_STEP = schema.step.c


@dataclass(frozen=True, slots=True)
class Expired:
    """A session that has expired. `was`: the state before; `unread`: it was finalized and nobody had drained it."""

    session_id: str
    instance_id: str | None
    was: str
    unread: bool


@dataclass(frozen=True, slots=True)
class Owned:
    """Another sidecar works with the session."""

    session_id: str
    sidecar_id: str
    control_url: str | None


def due(
    connection: Connection,
    before: float,
    after: tuple[float, str] | None,
    limit: int,
    *,
    drained_only: bool = False,
) -> list[tuple[float, str]]:
    """Sessions that `expire` may take, longest unused first, as (last change, id); `after`: the last one of an
    earlier page. Open ones of live sidecars are among them. `drained_only`: only those that somebody has read."""
    statement = select(_SESSION.updated_at, _SESSION.session_id).where(_is_due(before))
    if drained_only:
        statement = statement.where(_SESSION.drained_at.is_not(None))
    if after is not None:
        changed, session_id = after
        statement = statement.where(
            or_(
                _SESSION.updated_at > changed,
                and_(_SESSION.updated_at == changed, _SESSION.session_id > session_id),
            )
        )
    found = connection.execute(statement.order_by(_SESSION.updated_at, _SESSION.session_id).limit(limit))
    return [(row.updated_at, row.session_id) for row in found]


def count_unread(connection: Connection, before: float) -> int:
    """Finalized sessions that are due although nobody has read them."""
    unread = and_(_SESSION.state == "finalized", _SESSION.drained_at.is_(None), _SESSION.updated_at < before)
    return connection.execute(select(func.count()).select_from(schema.session).where(unread)).scalar_one()


def expire(
    connection: Connection, session_id: str, *, before: float, now: float, sidecar_id: str | None
) -> Expired | None:
    """Make the session a tombstone if nothing happened to it since `before` (Unix seconds): it was drained, else
    finalized, else took its last step, earlier. None if it is not so, or a live sidecar other than `sidecar_id`
    has it open."""
    row = connection.execute(
        select(_SESSION.state, _SESSION.instance_id, _SESSION.drained_at)
        .where(_SESSION.session_id == session_id)
        .with_for_update()
    ).first()
    if row is None:
        return None
    taken = connection.execute(
        update(schema.session)
        .where(
            _SESSION.session_id == session_id,
            _is_due(before),
            or_(_SESSION.state != "open", ~_held_by_another(connection, sidecar_id)),
        )
        .values(_tombstone("expired", now))
    )
    if not taken.rowcount:
        return None
    unread = row.state == "finalized" and row.drained_at is None
    return Expired(session_id, row.instance_id, row.state, unread)


def remove(connection: Connection, session_id: str, *, now: float, unread_too: bool) -> str | Owned | None:
    """Make the session a tombstone by hand, whatever its age: the state before. None for an id that the store does
    not know, `Owned` if a live sidecar has it open. Raises `StoreError` for an unread one unless `unread_too`."""
    row = connection.execute(
        select(_SESSION.state, _SESSION.drained_at, _SESSION.owner)
        .where(_SESSION.session_id == session_id)
        .with_for_update()
    ).first()
    if row is None:
        return None
    if row.state == "open" and row.owner is not None:
        live = connection.execute(
            select(schema.lease.c.sidecar_id, schema.lease.c.control_url).where(
                schema.lease.c.sidecar_id == row.owner, schema.lease.c.expires_at > text(_now(connection))
            )
        ).first()
        if live is not None:
            return Owned(session_id, live.sidecar_id, live.control_url)
    if row.state == "finalized" and row.drained_at is None and not unread_too:
        raise StoreError(
            f"session {session_id!r} is finalized and nobody has read it; read it first, or remove it with --unread"
        )
    if row.state in ("open", "finalized"):
        connection.execute(
            update(schema.session).where(_SESSION.session_id == session_id).values(_tombstone("discarded", now))
        )
    state: str = row.state
    return state


def unfinished(connection: Connection, limit: int) -> list[str]:
    """Tombstones that still have steps or blobs, or may have."""
    found = connection.execute(
        select(_SESSION.session_id)
        .where(_SESSION.state.in_(("expired", "discarded")), _SESSION.forgotten_at.is_(None), _has_rows())
        .limit(limit)
    )
    return list(found.scalars())


def clear(connection: Connection, session_id: str, *, now: float) -> bool:
    """Delete a portion of what a tombstone has left; True once nothing is. Replicas that clear the same session do
    not wait for each other: the later one leaves it to the earlier."""
    mine = connection.execute(
        select(_SESSION.session_id)
        .where(_SESSION.session_id == session_id, _SESSION.state.in_(("expired", "discarded")))
        .with_for_update(skip_locked=True)
    ).first()
    if mine is None:
        return True
    for table in (schema.step, schema.blob):
        if _delete_some(connection, table, session_id) == _ROWS:
            return False
    connection.execute(
        update(schema.session)
        .where(_SESSION.session_id == session_id, _SESSION.forgotten_at.is_(None))
        .values(forgotten_at=now)
    )
    return True


def forget(connection: Connection, before: float, limit: int) -> int:
    """Delete tombstones that were made before that; how many. Their ids are free again."""
    old = list(
        connection.execute(
            select(_SESSION.session_id)
            .where(
                _SESSION.state.in_(("expired", "discarded")),
                func.coalesce(_SESSION.forgotten_at, _SESSION.updated_at) < before,
                ~_has_rows(),
            )
            .limit(limit)
            .with_for_update(skip_locked=True)
        ).scalars()
    )
    if old:
        connection.execute(delete(schema.session).where(_SESSION.session_id.in_(old)))
    return len(old)


def expired_counts(connection: Connection) -> dict[str, int]:
    """What the tombstones that are still there say: `{"expired": n, "expired_unread": n}`, of all replicas."""
    unread = and_(_SESSION.finalization.is_not(None), _SESSION.drained_at.is_(None))
    count = select(func.count()).select_from(schema.session).where(_SESSION.state == "expired")
    return {
        "expired": connection.execute(count).scalar_one(),
        "expired_unread": connection.execute(count.where(unread)).scalar_one(),
    }


def _is_due(before: float) -> ColumnElement[bool]:
    recent_step = exists().where(_STEP.session_id == _SESSION.session_id, _STEP.created_at >= before)
    return and_(
        _SESSION.state.in_(("open", "finalized")),
        _SESSION.updated_at < before,  # by this, which is never later than the rest, the index finds them
        or_(
            and_(_SESSION.state == "finalized", func.coalesce(_SESSION.drained_at, _SESSION.updated_at) < before),
            and_(_SESSION.state == "open", ~recent_step),
        ),
    )


def _held_by_another(connection: Connection, sidecar_id: str | None) -> ColumnElement[bool]:
    lease = schema.lease.c
    return exists().where(
        lease.sidecar_id == _SESSION.owner,
        lease.sidecar_id != (sidecar_id or ""),
        lease.expires_at > text(_now(connection)),
    )


def _tombstone(state: str, now: float) -> dict[str, Any]:
    """Values of the row. The epoch fences whoever still has the session in memory."""
    return {
        "state": state,
        "updated_at": now,
        "metadata": "{}",
        "sampling": "{}",
        "owner": None,
        "epoch": func.coalesce(_SESSION.epoch, 0) + 1,
        "forgotten_at": None,
    }


def _has_rows() -> ColumnElement[bool]:
    return or_(
        exists().where(_STEP.session_id == _SESSION.session_id),
        exists().where(schema.blob.c.session_id == _SESSION.session_id),
    )


def _delete_some(connection: Connection, table: Table, session_id: str) -> int:
    keys = list(table.primary_key.columns)
    found: Sequence[Any] = connection.execute(
        select(*keys).where(table.c.session_id == session_id).limit(_ROWS)
    ).all()
    if found:
        connection.execute(delete(table).where(tuple_(*keys).in_([tuple(key) for key in found])))
    return len(found)


def _now(connection: Connection) -> str:
    return now_sql(connection.dialect.name)
