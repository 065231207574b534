"""Which sessions there are: pages of summaries, without their steps, for commands beside a running sidecar.

Promise: reads only, a page per snapshot, so that a long listing neither holds up the writer nor sees half a
transaction. Works on databases of every minor version. Safe from any task.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, Select, and_, func, literal, null, or_, select

from sidecar.store.protocol import Store
from sidecar.store.schema import session, step

_PAGE = 500


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """Which sessions are meant; what is not given does not count. All that is given has to hold."""

    states: tuple[str, ...] = ()
    session_id: str | None = None
    instance_id: str | None = None
    run_id: str | None = None
    since: float | None = None
    """Unix seconds: sessions whose row has changed since."""
    unread: bool = False
    """Finalized, and not drained yet."""

    def conditions(self) -> list[ColumnElement[bool]]:
        """For the WHERE of a statement."""
        columns = session.c
        found: list[ColumnElement[bool]] = []
        for name in ("session_id", "instance_id", "run_id"):
            if getattr(self, name) is not None:
                found.append(columns[name] == getattr(self, name))
        if self.states:
            found.append(columns.state.in_(self.states))
        if self.since is not None:
            found.append(columns.updated_at >= self.since)
        if self.unread:
            found.append(and_(columns.state == "finalized", columns.drained_at.is_(None)))
        return found


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """A session's row in short. Times in Unix seconds; `active_at` is that of the last step or change."""

    session_id: str
    instance_id: str | None
    run_id: str | None
    state: str
    created_at: float
    updated_at: float
    drained_at: float | None
    finalization: dict[str, Any] | None
    steps: int = 0
    active_at: float = 0.0


async def list_sessions(store: Store, chosen: SessionFilter, limit: int) -> list[SessionSummary]:
    """The newest sessions, by creation, with their steps counted. Raises `StoreError`."""
    statement = (
        _summaries(
            steps=select(func.count()).select_from(step).where(_own_steps()).scalar_subquery(),
            last_step=select(func.max(step.c.created_at)).where(_own_steps()).scalar_subquery(),
        )
        .where(*chosen.conditions())
        .order_by(session.c.created_at.desc(), session.c.session_id)
        .limit(limit)
    )

    def query(connection: Connection) -> list[SessionSummary]:
        return [_summary(row) for row in connection.execute(statement)]

    return await store.query("list of sessions", query)


async def count_sessions(store: Store, chosen: SessionFilter) -> int:
    """How many there are. Raises `StoreError`."""
    statement = select(func.count()).select_from(session).where(*chosen.conditions())
    return await store.query("count of sessions", lambda connection: connection.execute(statement).scalar_one())


async def each_session(store: Store, chosen: SessionFilter) -> AsyncIterator[SessionSummary]:
    """All sessions in order of their last change, a page at a time; `steps` stays 0. One that changes meanwhile may
    come again or, if it is moved behind the filter, not at all. Raises `StoreError`."""
    after: tuple[float, str] | None = None
    while page := await _page(store, chosen, after):
        for one in page:
            yield one
        after = (page[-1].updated_at, page[-1].session_id)


async def _page(store: Store, chosen: SessionFilter, after: tuple[float, str] | None) -> list[SessionSummary]:
    columns = session.c
    statement = _summaries(steps=literal(0), last_step=null()).where(*chosen.conditions())
    if after is not None:
        changed, session_id = after
        statement = statement.where(
            or_(
                columns.updated_at > changed,
                and_(columns.updated_at == changed, columns.session_id > session_id),
            )
        )
    statement = statement.order_by(columns.updated_at, columns.session_id).limit(_PAGE)

    def query(connection: Connection) -> list[SessionSummary]:
        return [_summary(row) for row in connection.execute(statement)]

    return await store.query("list of sessions", query)


def _own_steps() -> ColumnElement[bool]:
    return step.c.session_id == session.c.session_id


def _summaries(steps: ColumnElement[Any], last_step: ColumnElement[Any]) -> Select[Any]:
    columns = session.c
    return select(
        columns.session_id,
        columns.instance_id,
        columns.run_id,
        columns.state,
        columns.created_at,
        columns.updated_at,
        columns.drained_at,
        columns.finalization,
        steps.label("steps"),
        last_step.label("last_step"),
    )


def _summary(row: Any) -> SessionSummary:
    return SessionSummary(
        session_id=row.session_id,
        instance_id=row.instance_id,
        run_id=row.run_id,
        state=row.state,
        created_at=row.created_at,
        updated_at=row.updated_at,
        drained_at=row.drained_at,
        finalization=None if row.finalization is None else orjson.loads(row.finalization),
        steps=row.steps,
        active_at=max(row.updated_at, row.last_step or 0.0),
    )
