"""What ends a stored session, in SQL, on every database: expiry, portions, tombstones, removal by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import insert, update

from sidecar.store import expiry, schema
from sidecar.store.expiry import Expired, Owned
from sidecar.store.protocol import SessionState, StoreError
from sidecar.store.sql import SqlStore
from tests.store.conftest import Database
from tests.store.samples import session, step

NOW = 2_000_000_000.0


async def save(
    store: SqlStore, session_id: str, state: SessionState, at: float, *, steps: int = 1, **changes: Any
) -> None:
    """A session last changed, and its steps taken, at that time."""
    changes.setdefault("drained_at", None)
    finalization = {"reply": {}} if state == "finalized" else None
    await store.save_session(session(session_id, state=state, updated_at=at, finalization=finalization, **changes))
    for number in range(steps):
        await store.save_step(
            step(session_id, f"step-{number}", number, created_at=at), {f"blob-{number}".encode(): b"x" * 10}
        )


async def due(store: SqlStore, before: float) -> list[str]:
    found = await store.query("due", partial(expiry.due, before=before, after=None, limit=100))
    return [session_id for _, session_id in found]


def expire(store: SqlStore, session_id: str, before: float, **options: Any) -> Awaitable[Expired | None]:
    work = partial(expiry.expire, session_id=session_id, before=before, now=NOW, **{"sidecar_id": None, **options})
    return store.transact("expiry", work)


async def clear(store: SqlStore, session_id: str) -> int:
    """Clear all of it; in how many portions."""
    portions = 1
    while not await store.transact("clear", partial(expiry.clear, session_id=session_id, now=NOW)):
        portions += 1
    return portions


async def own(store: SqlStore, session_id: str, sidecar_id: str, seconds: float) -> None:
    """Let a sidecar own a session; its lease has so many seconds on the database's clock."""

    def work(connection: Any) -> None:
        now = connection.exec_driver_sql(f"SELECT {expiry.now_sql(connection.dialect.name)}").scalar_one()
        row = {"sidecar_id": sidecar_id, "control_url": "http://c", "url": "http://d", "expires_at": now + seconds}
        connection.execute(insert(schema.lease).values(row))
        connection.execute(
            update(schema.session)
            .where(schema.session.c.session_id == session_id)
            .values(owner=sidecar_id, epoch=4)
        )

    await store.transact("own", work)


async def test_age_counts_from_what_happened_last(store: SqlStore) -> None:
    await save(store, "read", "finalized", 100, drained_at=190)
    await save(store, "unread", "finalized", 120)
    await save(store, "open", "open", 110)
    await save(store, "working", "open", 90, steps=0)
    await store.save_step(step("working", "late", 0, created_at=180), {})
    await save(store, "gone", "discarded", 50, steps=0)
    assert await due(store, 125) == ["open", "unread"]
    assert await due(store, 185) == ["working", "open", "unread"]
    assert await due(store, 195) == ["working", "read", "open", "unread"]
    assert await due(store, 100) == []


async def test_an_expired_session_is_a_tombstone_with_the_first_finalization(store: SqlStore) -> None:
    await save(store, "s", "finalized", 100)
    assert await expire(store, "s", 100) is None, "not older than that"
    assert await expire(store, "s", 101) == Expired("s", "task-7", "finalized", unread=True)
    assert await expire(store, "s", 101) is None, "once"
    await clear(store, "s")
    loaded = await store.load_session("s")
    assert loaded is not None and loaded.steps == []
    assert (loaded.row.state, loaded.row.finalization, loaded.row.metadata) == ("expired", {"reply": {}}, {})
    assert await store.query("counts", expiry.expired_counts) == {"expired": 1, "expired_unread": 1}


async def test_what_was_read_does_not_count_as_unread(store: SqlStore) -> None:
    await save(store, "read", "finalized", 100, drained_at=100)
    await save(store, "open", "open", 100)
    assert await expire(store, "read", 101) == Expired("read", "task-7", "finalized", unread=False)
    assert await expire(store, "open", 101) == Expired("open", "task-7", "open", unread=False)
    assert await store.query("counts", expiry.expired_counts) == {"expired": 2, "expired_unread": 0}


async def test_of_many_that_expire_it_at_once_one_does(database: Database) -> None:
    stores = [await database.open() for _ in range(3)]
    for name in "abcdefgh":
        await save(stores[0], name, "finalized", 100)
    found = await asyncio.gather(*(expire(store, name, 101) for name in "abcdefgh" for store in stores))
    assert sorted(one.session_id for one in found if one is not None) == list("abcdefgh")
    await asyncio.gather(*(clear(store, name) for name in "abcdefgh" for store in stores))
    assert (await stores[0].counts())["steps"] == 0


async def test_a_session_that_is_drained_meanwhile_stays(store: SqlStore) -> None:
    await save(store, "s", "finalized", 100)
    assert await due(store, 101) == ["s"]
    await save(store, "s", "finalized", 100, drained_at=150)
    assert await expire(store, "s", 101) is None
    assert (await store.counts())["steps"] == 1


async def test_an_open_session_of_another_live_sidecar_is_left_to_it(store: SqlStore) -> None:
    for name, seconds in (("live", 60), ("dead", -60)):
        await save(store, name, "open", 100)
        await own(store, name, f"sidecar-{name}", seconds)
    assert await expire(store, "live", 101) is None
    assert await expire(store, "live", 101, sidecar_id="another") is None
    assert await expire(store, "dead", 101) is not None
    assert await expire(store, "live", 101, sidecar_id="sidecar-live") is not None

    def owner(connection: Any) -> list[Any]:
        columns = schema.session.c
        return list(connection.execute(schema.session.select().order_by(columns.session_id)).mappings())

    for row in await store.query("rows", owner):
        assert (row["owner"], row["epoch"]) == (None, 5), "whoever has it in memory is fenced"


async def test_a_large_session_goes_in_portions_and_a_kill_between_them_is_made_good(database: Database) -> None:
    store = await database.open()
    await save(store, "big", "open", 100, steps=150)
    await save(store, "small", "open", 100)
    await expire(store, "big", 101)
    await expire(store, "small", 101)
    assert not await store.transact("clear", partial(expiry.clear, session_id="big", now=NOW))
    assert (await store.counts())["steps"] == 150 - 64 + 1
    half = await store.load_session("big")
    assert half is not None and half.steps == [], "what is left makes no whole"
    await store.close()
    again = await database.open()
    assert sorted(await again.query("left", partial(expiry.unfinished, limit=9))) == ["big", "small"]
    assert await again.transact("forget", partial(expiry.forget, before=NOW + 1, limit=9)) == 0, "not yet empty"
    assert await clear(again, "big") > 2
    assert await clear(again, "small") == 1
    assert await again.counts() == {"sessions": 2, "steps": 0}
    assert await again.query("left", partial(expiry.unfinished, limit=9)) == []
    assert await again.transact("forget", partial(expiry.forget, before=NOW, limit=9)) == 0
    assert await again.transact("forget", partial(expiry.forget, before=NOW + 1, limit=9)) == 2
    assert await again.load_session("big") is None


async def test_tombstones_of_discarded_sessions_go_by_the_time_they_were_discarded(store: SqlStore) -> None:
    await save(store, "s", "open", 100)
    await store.discard_session(session("s", state="discarded", updated_at=500))
    assert await store.transact("forget", partial(expiry.forget, before=500, limit=9)) == 0
    assert await store.transact("forget", partial(expiry.forget, before=501, limit=9)) == 1
    assert await store.load_session("s") is None


async def test_removal_by_hand_is_refused_where_it_would_hurt(store: SqlStore) -> None:
    def remove(session_id: str, unread_too: bool = False) -> Awaitable[str | Owned | None]:
        return store.transact(
            "removal", partial(expiry.remove, session_id=session_id, now=NOW, unread_too=unread_too)
        )

    for name, seconds in (("live", 60), ("dead", -60)):
        await save(store, name, "open", 100)
        await own(store, name, f"sidecar-{name}", seconds)
    await save(store, "unread", "finalized", 100)
    await save(store, "read", "finalized", 100, drained_at=101)
    assert await remove("live") == Owned("live", "sidecar-live", "http://c")
    with pytest.raises(StoreError, match=r"nobody has read it.*--unread"):
        await remove("unread")
    assert (await store.counts())["steps"] == 4
    assert await remove("unread", unread_too=True) == "finalized"
    assert await remove("read") == "finalized"
    assert await remove("dead") == "open"
    assert await remove("dead") == "discarded"
    assert await remove("never") is None
    for name in ("dead", "read", "unread"):
        await clear(store, name)
        loaded = await store.load_session(name)
        assert loaded is not None and (loaded.row.state, loaded.steps) == ("discarded", [])
    assert (await store.counts())["steps"] == 1
