"""Writes that wait together share transactions, and one that fails does not harm the others."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from sqlalchemy import Connection

from sidecar.store.protocol import StoreBusy, StoreError
from sidecar.store.sql import SqlStore
from sidecar.store.writer import WriterLimits
from tests.store.conftest import Database, counted_commits
from tests.store.samples import session, step

COUNT_STEPS = "SELECT count(*) FROM step"
COUNT_TO_FIVE_MILLION = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000000) SELECT count(*) FROM n"
)


async def loaded_ids(store: SqlStore, session_id: str = "s1") -> list[str]:
    loaded = await store.load_session(session_id)
    assert loaded is not None
    return [found.step_id for found in loaded.steps]


async def test_two_hundred_concurrent_steps_take_a_handful_of_transactions(store: SqlStore) -> None:
    for index in range(16):
        await store.save_session(session(f"s{index}"))
    calls = [
        store.save_step(step(f"s{index % 16}", f"{index}", index // 16), {index.to_bytes(16): b"message"})
        for index in range(200)
    ]
    with counted_commits(store) as commits:
        await asyncio.gather(*calls)
    assert commits.count <= 5
    assert await store.counts() == {"sessions": 16, "steps": 200}


async def test_callers_that_save_step_after_step_share_transactions(store: SqlStore) -> None:
    async def run(session_id: str) -> None:
        await store.save_session(session(session_id))
        for sequence in range(20):
            await store.save_step(step(session_id, f"{sequence}", sequence), {})

    with counted_commits(store) as commits:
        await asyncio.gather(*(run(f"s{index}") for index in range(16)))
    assert commits.count <= 2 * 21
    assert await store.counts() == {"sessions": 16, "steps": 320}


async def test_one_bad_step_in_a_batch_fails_alone(store: SqlStore) -> None:
    await store.save_session(session())
    steps = [step(step_id=f"{index}", sequence=index) for index in range(40)]
    steps[7] = step(step_id="taken", sequence=3)
    steps[20] = step(step_id="too large", sequence=20, retry_count=2**70)
    steps[30] = step("never saved", "orphan")
    with counted_commits(store) as commits:
        outcomes = await asyncio.gather(*(store.save_step(one, {}) for one in steps), return_exceptions=True)
    failed = [index for index, outcome in enumerate(outcomes) if outcome is not None]
    assert failed == [7, 20, 30]
    assert all(isinstance(outcomes[index], StoreError) for index in failed)
    assert commits.count == 37
    assert await loaded_ids(store) == [f"{index}" for index in range(40) if index not in failed]
    assert store.failure() is None


async def test_a_full_queue_refuses_and_what_it_held_is_stored(database: Database) -> None:
    store = await database.open(limits=WriterLimits(queue_writes=4))
    await store.save_session(session())
    calls = [store.save_step(step(step_id=f"{index}", sequence=index), {}) for index in range(10)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert outcomes[:4] == [None] * 4
    assert all(isinstance(outcome, StoreBusy) for outcome in outcomes[4:])
    assert "4 writes" in str(outcomes[4])
    await store.save_step(step(step_id="later", sequence=4), {})
    assert await loaded_ids(store) == ["0", "1", "2", "3", "later"]


async def test_a_queue_full_of_bytes_refuses(database: Database) -> None:
    store = await database.open(limits=WriterLimits(queue_bytes=100_000))
    await store.save_session(session())
    big = {b"k": Random(0).randbytes(200_000)}  # which cannot be packed
    calls = [store.save_step(step(step_id=f"{index}", sequence=index), big) for index in range(3)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert outcomes[0] is None, "a write larger than the queue is taken when nothing else waits"
    assert [type(outcome) for outcome in outcomes[1:]] == [StoreBusy, StoreBusy]


async def test_close_writes_what_is_queued(database: Database) -> None:
    store = await database.open()
    await store.save_session(session())
    tasks = [
        asyncio.create_task(store.save_step(step(step_id=f"{index}", sequence=index), {})) for index in range(600)
    ]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*tasks)
    assert len(await loaded_ids(await database.open())) == 600


async def test_a_cancelled_caller_does_not_stop_the_writer(store: SqlStore) -> None:
    await store.save_session(session())
    task = asyncio.create_task(store.save_step(step(step_id="a", sequence=0), {}))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await store.save_step(step(step_id="b", sequence=1), {})
    assert await loaded_ids(store) == ["a", "b"]


async def test_a_delivered_mark_rides_along_with_the_next_batch(store: SqlStore) -> None:
    await store.save_session(session())
    await store.save_step(step(step_id="a", sequence=0), {})
    with counted_commits(store) as commits:
        store.mark_delivered("s1", "a")
        store.mark_delivered("s1", "unknown")
        await store.save_step(step(step_id="b", sequence=1), {})
    assert commits.count == 1
    loaded = await store.load_session("s1")
    assert loaded is not None
    assert [found.delivered for found in loaded.steps] == [True, False]


async def test_a_delivered_mark_left_alone_is_stored_by_close(database: Database) -> None:
    store = await database.open(limits=WriterLimits(defer_seconds=3600))
    await store.save_session(session())
    await store.save_step(step(), {})
    store.mark_delivered("s1", "a")
    await store.close()
    store.mark_delivered("s1", "a")
    loaded = await (await database.open()).load_session("s1")
    assert loaded is not None
    assert loaded.steps[0].delivered


async def test_marks_and_saves_of_one_step_take_effect_in_their_order(store: SqlStore) -> None:
    await store.save_session(session())
    saving = asyncio.create_task(store.save_step(step(), {}))
    await asyncio.sleep(0)
    store.mark_delivered("s1", "a")
    await saving
    loaded = await store.load_session("s1")
    assert loaded is not None
    assert loaded.steps[0].delivered
    store.mark_delivered("s1", "a")
    await store.save_step(step(delivered=False), {})
    loaded = await store.load_session("s1")
    assert loaded is not None
    assert not loaded.steps[0].delivered


async def test_a_read_that_stays_open_does_not_hold_up_the_writer(database: Database) -> None:
    store = await database.open(busy_timeout=0.1)
    await store.save_session(session())

    started = asyncio.Event()

    def slow_read(connection: Connection) -> list[int]:
        def ask(query: str) -> int:
            answer: int = connection.exec_driver_sql(query).scalar_one()
            started.set()
            return answer

        return [ask(query) for query in (COUNT_STEPS, COUNT_TO_FIVE_MILLION, COUNT_STEPS)]

    reading = asyncio.create_task(store.backend.read(slow_read))
    await asyncio.wait_for(started.wait(), 30)
    await store.save_step(step(), {})
    assert not reading.done()
    assert await reading == [0, 5_000_000, 0], "one snapshot, taken before the step"
    assert await store.counts() == {"sessions": 1, "steps": 1}
