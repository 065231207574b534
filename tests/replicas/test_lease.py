"""The thread that renews the lease."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sidecar.replicas import lease_keeper
from sidecar.replicas.lease_keeper import Announced, LeaseKeeper
from sidecar.replicas.predecessor import StateDirLock
from sidecar.store.backends import locate
from sidecar.store.ownership import HeldLease, OwnershipSql
from sidecar.store.protocol import LeaseRow, StoreError
from sidecar.store.sql import SqlStore
from tests.support.waiting import until

SECONDS = 0.6
HERE = Announced("http://here", "http://here-too")


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[SqlStore]:
    store = SqlStore(store_url)
    await store.start()
    yield store
    await store.close()


@asynccontextmanager
async def kept(url: str, lease: HeldLease, announced: Announced = HERE) -> AsyncIterator[LeaseKeeper]:
    """A keeper while it runs."""
    keeper = LeaseKeeper(lease, locate(url, busy_timeout=0.1).open, SECONDS)
    await keeper.start(announced)
    try:
        yield keeper
    finally:
        await keeper.stop()


async def live(store: SqlStore) -> list[LeaseRow]:
    return await store.query("leases", OwnershipSql("sqlite").live)


async def test_a_lease_is_made_renewed_and_released(store: SqlStore, store_url: str) -> None:
    lease = HeldLease("me")
    async with kept(store_url, lease):
        [first] = await live(store)
        assert (first.sidecar_id, first.url, first.control_url) == ("me", "http://here", "http://here-too")
        assert lease.valid
        deadline = lease.deadline
        await until(lambda: lease.deadline > deadline, "a renewal")
        [second] = await live(store)
        assert first.expires_at is not None
        assert second.expires_at is not None
        assert second.expires_at > first.expires_at
        assert lease.lapses == 1  # it had none before it was made
    assert await live(store) == []
    assert not lease.valid


async def test_a_busy_event_loop_does_not_lose_the_lease(store: SqlStore, store_url: str) -> None:
    lease = HeldLease("me")
    async with kept(store_url, lease):
        time.sleep(3 * SECONDS)  # noqa: ASYNC251 - that is what is tested
        assert lease.valid
        assert len(await live(store)) == 1
        assert lease.lapses == 1


async def test_a_process_whose_event_loop_is_stuck_loses_its_lease(
    store: SqlStore, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_keeper, "_STUCK", 1)
    lease, over = HeldLease("me"), asyncio.Event()
    async with kept(store_url, lease) as keeper:
        keeper.on_lapse_over = over.set
        time.sleep(4 * SECONDS)  # noqa: ASYNC251
        assert not lease.valid
        assert keeper.problem is not None
        assert "event loop" in keeper.problem
        assert await live(store) == []
        await until(lambda: lease.valid, "a renewal, now that it goes round")
        await over.wait()
        assert keeper.problem is None
        assert lease.lapses == 2


async def test_the_local_deadline_is_never_later_than_the_one_in_the_database(
    store: SqlStore, store_url: str
) -> None:
    lease = HeldLease("me")
    async with kept(store_url, lease):
        for _ in range(5):
            before = lease.deadline
            await until(lambda before=before: lease.deadline > before, "a renewal")
            left = await store.query(
                "left", lambda connection: OwnershipSql("sqlite").seconds_left(connection, "me")
            )
            assert lease.deadline - time.monotonic() <= left + 0.01  # what the query took is on our side


async def test_a_store_that_is_locked_costs_the_lease_and_gives_it_back(store: SqlStore, store_url: str) -> None:
    lease = HeldLease("me")
    async with kept(store_url, lease) as keeper:

        def hold(_: object) -> None:
            deadline = time.monotonic() + 20
            while lease.valid and time.monotonic() < deadline:
                time.sleep(0.01)

        await store.transact("a long transaction", hold)
        assert not lease.valid
        await until(lambda: lease.valid, "a renewal")
        await until(lambda: keeper.problem is None, "an end of the problem")


async def test_a_sidecar_without_a_lease_does_not_start(tmp_path: Path) -> None:
    keeper = LeaseKeeper(HeldLease("me"), locate(f"sqlite:///{tmp_path}/nowhere/tito.db").open, SECONDS)
    with pytest.raises(StoreError, match="no lease"):
        await keeper.start(HERE)
    await keeper.stop()


async def test_the_lease_of_a_predecessor_that_is_gone_ends_at_once(store: SqlStore, store_url: str) -> None:
    dead = LeaseRow("dead", None, None, None)
    await store.transact("lease", lambda connection: OwnershipSql("sqlite").renew(connection, dead, 3600.0))
    async with kept(store_url, HeldLease("me"), Announced("http://here", "http://here-too", "dead")):
        assert [lease.sidecar_id for lease in await live(store)] == ["me"]


def test_a_state_directory_names_its_last_sidecar_once_that_is_gone(tmp_path: Path) -> None:
    first, second, third = (StateDirLock(tmp_path / "sidecar-id") for _ in range(3))
    assert first.acquire() is None
    first.write("one")
    assert second.acquire() is None  # it lives
    second.write("two")  # and is not to be overwritten
    first.release()
    assert third.acquire() == "one"
    third.write("three")
    third.release()
    third.release()
    assert (tmp_path / "sidecar-id").read_text() == "three"
