"""What is asked of many sessions at once: which instance groups can be read, who drains them, and statistics.

Promise: a group is drained by one transaction, whole, and by one reader only, on any number of replicas: SQLite
has one writer, and on PostgreSQL the transactions that drain take turns. Functions run inside a transaction of the
caller, on any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, case, func, select, update

from sidecar.store import schema

_DRAINING = 7_306_086_896_127_105_345
"""Names the lock on PostgreSQL that transactions which drain hold; any number that nothing else uses."""

_IDS_PER_UPDATE = 1000

_SESSION = schema.session.c
_LONE = case((_SESSION.instance_id.is_(None), _SESSION.session_id), else_=None)
"""A session without an instance id belongs with no other: its own id keeps it apart."""

_KEY = (_SESSION.instance_id, _SESSION.run_id, _SESSION.drained_at, _LONE)


@dataclass(frozen=True, slots=True)
class Group:
    """Finalized sessions that are read together, oldest first. `drained_at`: Unix seconds, None for unread ones."""

    instance_id: str | None
    run_id: str | None
    drained_at: float | None
    session_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GroupQuery:
    """Which groups are wanted. A group is the sessions of one instance id in one run that were drained together, or
    that nobody has drained; discarded and expired ones belong to none. It is whole once none of them is open."""

    max_groups: int
    min_group_size: int = 1
    run_id: str | None = None
    """Only groups of this run; None: of all runs."""
    include_drained: bool = False


def find_groups(connection: Connection, query: GroupQuery) -> list[Group]:
    """Whole groups, the one with the longest finalized session first."""
    return _members(connection, _whole_keys(connection, query))


def drain_groups(
    connection: Connection, query: GroupQuery, *, now: float, drain_id: str | None = None
) -> list[Group]:
    """Groups as `find_groups` gives them, marked as drained at `now` by `drain_id`.

    If something was drained by this `drain_id` before, that is the answer and nothing else changes."""
    _take_turns(connection)
    if drain_id is not None and (again := drained_by(connection, drain_id)):
        return again
    found = _members(connection, _whole_keys(connection, query), lock=True)
    unread = [session_id for group in found if group.drained_at is None for session_id in group.session_ids]
    _mark(connection, unread, now, drain_id)
    return [
        Group(
            group.instance_id,
            group.run_id,
            now if group.drained_at is None else group.drained_at,
            group.session_ids,
        )
        for group in found
    ]


def drained_by(connection: Connection, drain_id: str) -> list[Group]:
    """The groups that one drain took."""
    where = (_SESSION.drain_id == drain_id, _SESSION.state == "finalized")
    return _members(connection, _grouped(connection, *where, order=func.min(_SESSION.updated_at)))


def drain_session(
    connection: Connection, session_id: str, *, now: float, drain_id: str | None = None
) -> tuple[float | None, bool]:
    """Mark one finalized session as drained: when it was, and whether by this call or an earlier one of the same
    `drain_id`. (None, False) if it is not there or not finalized."""
    _take_turns(connection)
    marked = _mark(connection, [session_id], now, drain_id)
    found = connection.execute(
        select(_SESSION.drained_at, _SESSION.drain_id).where(
            _SESSION.session_id == session_id, _SESSION.state == "finalized"
        )
    ).first()
    if found is None:
        return None, False
    return found.drained_at, bool(marked) or (drain_id is not None and found.drain_id == drain_id)


def _take_turns(connection: Connection) -> None:
    """Two drains at once would see the same groups; SQLite lets only one transaction write anyhow."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_DRAINING)))


def _mark(connection: Connection, session_ids: Sequence[str], now: float, drain_id: str | None) -> int:
    """The number of sessions that this made drained."""
    marked = 0
    for at in range(0, len(session_ids), _IDS_PER_UPDATE):
        part = session_ids[at : at + _IDS_PER_UPDATE]
        done = connection.execute(
            update(schema.session)
            .where(_SESSION.session_id.in_(part), _SESSION.state == "finalized", _SESSION.drained_at.is_(None))
            .values(drained_at=now, drain_id=drain_id)
        )
        marked += done.rowcount
    return marked


def _whole_keys(connection: Connection, query: GroupQuery) -> Sequence[Row[Any]]:
    where: list[ColumnElement[bool]] = [_SESSION.state.in_(("open", "finalized"))]
    if not query.include_drained:
        where.append(_SESSION.drained_at.is_(None))
    if query.run_id is not None:
        where.append(_SESSION.run_id == query.run_id)
    still_open = func.sum(case((_SESSION.state == "open", 1), else_=0))
    return _grouped(
        connection,
        *where,
        having=(still_open == 0, func.count() >= query.min_group_size),
        order=func.min(_SESSION.updated_at),
        limit=query.max_groups,
    )


def _grouped(
    connection: Connection,
    *where: ColumnElement[bool],
    having: Sequence[ColumnElement[bool]] = (),
    order: ColumnElement[Any],
    limit: int | None = None,
) -> Sequence[Row[Any]]:
    wanted = select(*_KEY[:3], _LONE.label("lone"), func.count().label("size")).where(*where).group_by(*_KEY)
    return connection.execute(wanted.having(*having).order_by(order, *_KEY).limit(limit)).all()


def _members(connection: Connection, keys: Sequence[Row[Any]], *, lock: bool = False) -> list[Group]:
    """The sessions of each group. One that changed since its key was read is left for the next time."""
    groups = []
    for key in keys:
        wanted = (
            select(_SESSION.session_id)
            .where(
                _SESSION.state == "finalized",
                _same(_SESSION.instance_id, key.instance_id),
                _same(_SESSION.run_id, key.run_id),
                _same(_SESSION.drained_at, key.drained_at),
                *([_SESSION.session_id == key.lone] if key.lone is not None else []),
            )
            .order_by(_SESSION.created_at, _SESSION.session_id)
        )
        members = tuple(connection.execute(wanted.with_for_update() if lock else wanted).scalars())
        if len(members) == key.size:
            groups.append(Group(key.instance_id, key.run_id, key.drained_at, members))
    return groups


def _same(column: ColumnElement[Any], value: Any) -> ColumnElement[bool]:
    return column.is_(None) if value is None else column == value


def statistics(connection: Connection) -> dict[str, Any]:
    """Counts by state, what of the finalized sessions is unread, and bytes.

    `oldest_unread_at`: when the oldest unread session was finalized, Unix seconds, or None."""
    drained = _SESSION.drained_at.is_not(None)
    rows = connection.execute(
        select(
            _SESSION.state,
            drained.label("drained"),
            func.count().label("n"),
            func.min(_SESSION.updated_at).label("since"),
        ).group_by(_SESSION.state, drained)
    ).all()
    states = {"open": 0, "finalized": 0, "discarded": 0, "expired": 0}
    read = {False: 0, True: 0}
    oldest = None
    for row in rows:
        states[row.state] = states.get(row.state, 0) + row.n
        if row.state == "finalized":
            read[bool(row.drained)] += row.n
            oldest = oldest if row.drained else row.since
    return {
        "sessions": states,
        "steps": connection.execute(select(func.count()).select_from(schema.step)).scalar_one(),
        "unread": read[False],
        "drained": read[True],
        "oldest_unread_at": oldest,
        "database_bytes": database_bytes(connection),
    }


def database_bytes(connection: Connection) -> int:
    """Bytes of the tables with their indexes; free pages of an SQLite file count."""
    if connection.dialect.name == "postgresql":
        sizes = [func.pg_total_relation_size(one.name) for one in schema.metadata.sorted_tables]
        return sum(int(size) for size in connection.execute(select(*sizes)).one())
    pages: int = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    size: int = connection.exec_driver_sql("PRAGMA page_size").scalar_one()
    return pages * size
