"""Whole instance groups: which there are, in which order, and that each is drained once, by one reader, whole."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from sidecar.store.catalog import Group, GroupQuery, drain_groups, drain_session, find_groups
from sidecar.store.protocol import Store
from sidecar.store.sql import SqlStore
from tests.reading.sessions import row
from tests.store.conftest import Database


async def put(store: Store, *names: str, **fields: Any) -> None:
    """Sessions without steps: groups look at their rows only."""
    for name in names:
        await store.save_session(row(name, **fields))


async def found(store: Store, most: int = 100, least: int = 1, **fields: Any) -> list[Group]:
    query = GroupQuery(most, least, **fields)
    return await store.query("groups", lambda connection: find_groups(connection, query))


async def drained(
    store: Store, most: int = 100, least: int = 1, drain_id: str | None = None, **fields: Any
) -> list[Group]:
    query, now = GroupQuery(most, least, **fields), time.time()
    return await store.transact(
        "drain", lambda connection: drain_groups(connection, query, now=now, drain_id=drain_id)
    )


def ids(groups: Sequence[Group]) -> list[tuple[str, ...]]:
    return [group.session_ids for group in groups]


async def test_a_group_is_the_finalized_sessions_of_an_instance_by_their_beginning(store: SqlStore) -> None:
    await put(store, "b", created_at=1.0)
    await put(store, "a", created_at=2.0)
    await put(store, "c", created_at=0.5, instance_id="other")
    assert {group.instance_id: group.session_ids for group in await found(store)} == {
        "task": ("b", "a"),
        "other": ("c",),
    }


async def test_an_open_session_holds_its_group_up_and_discarded_ones_do_not(store: SqlStore) -> None:
    await put(store, "a", "b")
    await put(store, "open", state="open", finalization=None)
    await put(store, "x", instance_id="other")
    assert ids(await found(store)) == [("x",)]
    await put(store, "open", state="discarded", finalization=None)
    await put(store, "gone", state="expired", finalization=None)
    assert sorted(ids(await found(store))) == [("a", "b"), ("x",)]
    assert all("open" not in group.session_ids for group in await found(store, include_drained=True))


async def test_an_instance_that_is_only_open_or_discarded_is_no_group(store: SqlStore) -> None:
    await put(store, "o", state="open", finalization=None)
    await put(store, "d", state="discarded", finalization=None, instance_id="other")
    assert await found(store) == [] == await drained(store)


async def test_groups_that_are_too_small_wait(store: SqlStore) -> None:
    await put(store, "a", "b")
    await put(store, "c", instance_id="other")
    assert ids(await found(store, least=2)) == [("a", "b")]
    assert await found(store, least=3) == []
    await put(store, "d", instance_id="other")
    assert len(await found(store, least=2)) == 2


async def test_the_longest_finalized_group_comes_first(store: SqlStore) -> None:
    await put(store, "new", instance_id="new", updated_at=30.0)
    await put(store, "mid", instance_id="mid", updated_at=20.0)
    await put(store, "old", instance_id="old", updated_at=10.0)
    await put(store, "old-2", instance_id="old", updated_at=40.0)
    assert [group.instance_id for group in await found(store)] == ["old", "mid", "new"]
    assert [group.instance_id for group in await drained(store, most=2)] == ["old", "mid"]
    assert [group.instance_id for group in await drained(store, most=2)] == ["new"]


async def test_runs_are_apart_and_can_be_asked_for(store: SqlStore) -> None:
    await put(store, "a", run_id="one")
    await put(store, "b", run_id="two")
    await put(store, "left", run_id="one", instance_id="other", state="open", finalization=None)
    assert len(await found(store)) == 2
    assert ids(await found(store, run_id="two")) == [("b",)]
    assert ids(await drained(store, run_id="two")) == [("b",)]
    assert ids(await found(store)) == [("a",)]


async def test_a_session_without_an_instance_is_alone(store: SqlStore) -> None:
    await put(store, "a", "b", instance_id=None)
    assert sorted(ids(await found(store))) == [("a",), ("b",)]
    assert await found(store, least=2) == []


async def test_what_was_drained_is_gone_until_it_is_asked_for_in_the_same_groups(store: SqlStore) -> None:
    await put(store, "a", "b")
    [first] = await drained(store)
    await put(store, "c")  # the instance again, in a later epoch
    assert first.drained_at is not None
    assert ids(await found(store)) == [("c",)]
    [second] = await drained(store)
    assert await found(store) == [] == await drained(store)
    again = await found(store, include_drained=True)
    assert sorted(again, key=lambda group: group.session_ids) == [first, second]


async def test_an_equal_drain_id_gets_the_same_groups_and_nothing_else(store: SqlStore) -> None:
    await put(store, "a", "b")
    await put(store, "c", instance_id="other", updated_at=3.0)
    first = await drained(store, most=1, drain_id="mine")
    assert ids(first) == [("a", "b")]
    assert await drained(store, most=1, drain_id="mine") == first
    assert await drained(store, most=5, drain_id="mine") == first, "the first drain decides"
    assert ids(await drained(store, drain_id="another")) == [("c",)]


async def test_draining_with_what_was_drained_before_keeps_its_time(store: SqlStore) -> None:
    await put(store, "a")
    [first] = await drained(store)
    await put(store, "b", instance_id="other")
    groups = await drained(store, include_drained=True)
    assert first in groups and len(groups) == 2
    assert all(group.drained_at is not None for group in groups)


async def test_one_session_is_drained_once_by_whoever_names_it(store: SqlStore) -> None:
    async def drain(session_id: str, drain_id: str | None, now: float) -> tuple[float | None, bool]:
        return await store.transact(
            "drain", lambda connection: drain_session(connection, session_id, now=now, drain_id=drain_id)
        )

    await put(store, "a")
    await put(store, "open", state="open", finalization=None)
    assert await drain("a", "mine", 5.0) == (5.0, True)
    assert await drain("a", "mine", 6.0) == (5.0, True)
    assert await drain("a", "yours", 6.0) == (5.0, False)
    assert await drain("a", None, 6.0) == (5.0, False)
    assert await drain("open", None, 6.0) == (None, False) == await drain("never", None, 6.0)


async def test_readers_of_several_replicas_get_each_group_once_and_whole(database: Database) -> None:
    stores = [await database.open() for _ in range(3)]
    expected = {f"task-{number}": 3 for number in range(20)}
    for instance in expected:
        await put(stores[0], *(f"{instance}.{at}" for at in range(3)), instance_id=instance)
    taken: list[Group] = []

    async def reader(store: Store) -> None:
        while groups := await drained(store, most=3, least=3):
            taken.extend(groups)

    await asyncio.gather(*(reader(store) for store in stores for _ in range(2)))
    assert {group.instance_id: len(group.session_ids) for group in taken} == expected
    assert len(taken) == len(expected), "a group was given out twice"


async def test_two_tries_of_one_drain_at_once_get_the_same(database: Database) -> None:
    stores = [await database.open() for _ in range(2)]
    for number in range(6):
        await put(stores[0], f"s{number}", instance_id=f"task-{number}")
    tries = await asyncio.gather(*(drained(store, most=2, drain_id="mine") for store in stores * 3))
    assert all(one == tries[0] for one in tries) and len(tries[0]) == 2


async def test_groups_that_grow_while_they_are_read_are_never_given_out_in_parts(database: Database) -> None:
    writer, reader = await database.open(), await database.open()
    done = asyncio.Event()
    taken: list[Group] = []

    async def drain() -> None:
        while not done.is_set() or await found(reader, least=2):
            taken.extend(await drained(reader, least=2))
            await asyncio.sleep(0)

    task = asyncio.create_task(drain())
    for number in range(15):
        instance = f"task-{number}"
        for name in ("a", "b"):
            await put(writer, f"{instance}.{name}", instance_id=instance, state="open", finalization=None)
        for name in ("a", "b"):
            await put(writer, f"{instance}.{name}", instance_id=instance)
    done.set()
    await task
    assert sorted(ids(taken)) == sorted((f"task-{n}.a", f"task-{n}.b") for n in range(15))
