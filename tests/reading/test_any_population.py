"""Groups and drains over any history of sessions are those of a few lines of plain Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, create_engine

from sidecar.store import schema
from sidecar.store.catalog import Group, GroupQuery, drain_groups, find_groups
from sidecar.store.protocol import SessionRow
from sidecar.store.rows import session_row
from sidecar.store.writes import insert_or_replace
from tests.reading.sessions import row

SESSIONS = st.integers(0, 7)
PUT = st.tuples(st.just("put"), SESSIONS, st.sampled_from(["open", "finalized", "finalized", "discarded"]))
QUERIES = st.builds(
    GroupQuery,
    max_groups=st.integers(1, 3),
    min_group_size=st.integers(1, 3),
    run_id=st.sampled_from([None, None, "run-1"]),
    include_drained=st.booleans(),
)
READ = st.tuples(st.sampled_from(["find", "drain"]), QUERIES, st.sampled_from([None, "d1", "d2"]))
HISTORIES = st.lists(st.one_of(PUT, PUT, READ), min_size=4, max_size=30)


@dataclass
class Session:
    """What the model knows of a session. Its number says its instance and run, and when it began."""

    number: int
    state: str
    updated: float
    drained_at: float | None = None
    drain_id: str | None = None

    @property
    def name(self) -> str:
        return f"s{self.number}"

    @property
    def instance(self) -> str | None:
        return None if self.number == 7 else f"task-{self.number % 2}"

    @property
    def run(self) -> str | None:
        return "run-1" if self.number >= 4 else None


class Model:
    """All sessions, and what the store should answer."""

    def __init__(self) -> None:
        self.sessions: dict[int, Session] = {}

    def groups(self, query: GroupQuery) -> list[list[Session]]:
        found: dict[Any, list[Session]] = {}
        for session in sorted(self.sessions.values(), key=lambda one: one.number):
            if session.state == "discarded" or (session.drained_at is not None and not query.include_drained):
                continue
            if query.run_id in (None, session.run):
                alone = session.name if session.instance is None else None
                found.setdefault((session.instance, session.run, session.drained_at, alone), []).append(session)
        whole = [
            group
            for group in found.values()
            if len(group) >= query.min_group_size and all(one.state == "finalized" for one in group)
        ]
        whole.sort(key=lambda group: min(one.updated for one in group))
        return whole[: query.max_groups]

    def drain(self, query: GroupQuery, now: float, drain_id: str | None) -> list[list[Session]]:
        again = [
            one
            for one in sorted(self.sessions.values(), key=lambda one: one.number)
            if drain_id is not None and one.drain_id == drain_id and one.state == "finalized"
        ]
        if again:
            groups: dict[Any, list[Session]] = {}
            for one in again:
                groups.setdefault((one.instance or one.name, one.run, one.drained_at), []).append(one)
            return sorted(groups.values(), key=lambda group: min(one.updated for one in group))
        taken = self.groups(query)
        for session in (one for group in taken for one in group if one.drained_at is None):
            session.drained_at, session.drain_id = now, drain_id
        return taken


def save(connection: Connection, record: SessionRow) -> None:
    connection.execute(insert_or_replace("sqlite", schema.session, apart=schema.SESSION_APART), session_row(record))


def put(connection: Connection, model: Model, at: float, number: int, state: str) -> None:
    session = model.sessions.setdefault(number, Session(number, state, at))
    if session.state == "open" or session.updated == at:  # only open ones change
        session.state, session.updated = state, at
        fields: dict[str, Any] = {"instance_id": session.instance, "run_id": session.run, "state": state}
        save(connection, row(session.name, created_at=float(number), updated_at=at, **fields))


@settings(max_examples=100)
@given(HISTORIES)
def test_the_store_groups_and_drains_as_the_model_does(history: list[tuple[Any, ...]]) -> None:
    engine = create_engine("sqlite://")
    schema.metadata.create_all(engine)
    model = Model()
    with engine.connect() as connection:
        for at, (kind, *arguments) in enumerate(history):
            now = float(at)
            if kind == "put":
                put(connection, model, now, *arguments)
                continue
            query, drain_id = arguments
            if kind == "find":
                expected, found = model.groups(query), find_groups(connection, query)
            else:
                expected = model.drain(query, now, drain_id)
                found = drain_groups(connection, query, now=now, drain_id=drain_id)
            assert found == [
                Group(group[0].instance, group[0].run, group[0].drained_at, tuple(one.name for one in group))
                for group in expected
            ]
    engine.dispose()
