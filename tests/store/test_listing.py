"""Which sessions there are, on every database: pages, filters, counts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sidecar.store import listing
from sidecar.store.listing import SessionFilter, count_sessions, each_session, list_sessions
from sidecar.store.sql import SqlStore
from tests.store.samples import session, step


async def save(store: SqlStore, *names: str, **changes: Any) -> None:
    """Sessions, each a second younger than the one before."""
    for number, name in enumerate(names):
        times = {"created_at": 100.0 + number, "updated_at": 100.0 + number}
        await store.save_session(session(name, **{"drained_at": None, **times, **changes}))


async def ids(store: SqlStore, **chosen: Any) -> list[str]:
    return [one.session_id async for one in each_session(store, SessionFilter(**chosen))]


async def test_all_come_once_in_order_of_their_change_across_pages(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_PAGE", 3)
    await save(store, *"cabd")
    await save(store, *(f"same-{number}" for number in range(7)), updated_at=200.0)
    assert await ids(store) == [*"cabd", *(f"same-{number}" for number in range(7))]
    assert await count_sessions(store, SessionFilter()) == 11


async def test_one_that_changes_while_pages_are_read_comes_again(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_PAGE", 2)
    await save(store, *"abcd")
    found = []
    async for one in each_session(store, SessionFilter()):
        found.append(one.session_id)
        if found == ["a", "b"]:
            await save(store, "a", updated_at=500.0)
    assert found == ["a", "b", "c", "d", "a"]


async def test_filters_hold_together(store: SqlStore) -> None:
    await save(store, "open", "other", state="open")
    await save(store, "read", state="finalized", drained_at=150.0, instance_id="i")
    await save(store, "unread", state="finalized", updated_at=300.0, run_id="r")
    assert await ids(store, states=("open",)) == ["open", "other"]
    assert await ids(store, unread=True) == ["unread"]
    assert await ids(store, instance_id="i") == ["read"]
    assert await ids(store, run_id="r", states=("open",)) == []
    assert await ids(store, since=300.0) == ["unread"]
    assert await ids(store, session_id="other") == ["other"]
    assert await count_sessions(store, SessionFilter(states=("finalized",))) == 2


async def test_summaries_count_steps_and_know_the_last(store: SqlStore) -> None:
    await save(store, "empty", "busy")
    steps = [step("busy", f"s{number}", number, created_at=500.0 + number) for number in range(3)]
    await asyncio.gather(*(store.save_step(one, {}) for one in steps))
    busy, empty = await list_sessions(store, SessionFilter(), 10)
    assert (busy.session_id, busy.steps, busy.active_at) == ("busy", 3, 502.0)
    assert (empty.session_id, empty.steps, empty.active_at) == ("empty", 0, 100.0)
    assert busy.finalization == {"reward": 0.5, "segments": 2}
    assert [one.session_id for one in await list_sessions(store, SessionFilter(), 1)] == ["busy"]
