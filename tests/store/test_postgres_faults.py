"""PostgreSQL alone: what is lost on the way to it, and that nothing acknowledged is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from sqlalchemy import Connection, text

from sidecar.store.protocol import StoreError
from sidecar.store.sql import SqlStore
from sidecar.store.writer import WriterLimits
from tests.replicas.rivals import Rival
from tests.store.conftest import Database
from tests.store.samples import session, step
from tests.support.postgres import Postgres
from tests.support.postgres_proxy import Proxy, proxied


@pytest.fixture
async def proxy(postgres: Postgres) -> AsyncIterator[Proxy]:
    async with proxied(postgres.socket) as running:
        yield running


@pytest.fixture
async def through(proxy: Proxy, postgres_url: str) -> AsyncIterator[Database]:
    """A database of the test's own that is reached through `proxy`."""
    database = Database(proxy.url(search_path=postgres_url.rpartition("=")[2]))
    yield database
    proxy.release()
    await database.close_all()


async def step_ids(store: SqlStore, session_id: str = "s1") -> list[str]:
    loaded = await store.load_session(session_id)
    assert loaded is not None
    return [found.step_id for found in loaded.steps]


async def until_it_writes(store: SqlStore) -> None:
    async with asyncio.timeout(30):
        while store.failure() is not None:
            await store.counts()


async def test_a_server_that_restarts_under_writes_costs_no_call_and_no_step(
    postgres: Postgres, postgres_url: str
) -> None:
    await postgres.execute("CHECKPOINT")  # recovery need not replay what other tests wrote
    store = SqlStore(postgres_url, timeout=60)
    await store.start()
    done: dict[str, list[str]] = {f"s{index}": [] for index in range(8)}
    restarted = asyncio.Event()
    written = asyncio.Condition()

    async def write(session_id: str) -> None:
        await store.save_session(session(session_id))
        while not (restarted.is_set() and len(done[session_id]) > 20):
            step_id = f"{len(done[session_id])}"
            await store.save_step(step(session_id, step_id, len(done[session_id])), {step_id.encode(): b"message"})
            done[session_id].append(step_id)
            async with written:
                written.notify_all()

    async def restart() -> None:
        async with written:
            await written.wait_for(lambda: sum(map(len, done.values())) > 40)
        await asyncio.to_thread(postgres.stop)
        await asyncio.to_thread(postgres.start)
        restarted.set()

    async with asyncio.timeout(120):
        await asyncio.gather(restart(), *(write(session_id) for session_id in done))
    assert store.failure() is None
    for session_id, ids in done.items():
        assert await step_ids(store, session_id) == ids
        assert len(await store.read_blobs(session_id, [name.encode() for name in ids])) == len(ids)
    await store.close()


@pytest.mark.parametrize("lost", ["commit", "reply"])
async def test_a_commit_of_unknown_outcome_is_made_good(through: Database, proxy: Proxy, lost: str) -> None:
    store = await through.open()
    await store.save_session(session())
    proxy.lose = lost
    await store.save_step(step(step_id="a", sequence=0), {b"k": b"v"})
    await store.save_step(step(step_id="b", sequence=1), {})
    assert proxy.lost == 1
    assert await step_ids(store) == ["a", "b"]
    assert await store.read_blobs("s1", [b"k"]) == {b"k": b"v"}
    assert store.failure() is None


@pytest.mark.parametrize("lost", ["commit", "reply"])
async def test_a_discard_of_unknown_outcome_counts_its_steps(through: Database, proxy: Proxy, lost: str) -> None:
    store = await through.open()
    await store.save_session(session())
    for index in range(3):
        await store.save_step(step(step_id=f"{index}", sequence=index), {})
    proxy.lose = lost
    assert await store.discard_session(session(state="discarded")) == 3
    assert proxy.lost == 1
    assert await step_ids(store) == []


@pytest.mark.parametrize("lost", ["commit", "reply"])
async def test_a_transaction_that_must_not_happen_twice_happens_once(
    through: Database, proxy: Proxy, lost: str
) -> None:
    store = await through.open()
    await store.transact(
        "setting up", lambda connection: connection.execute(text("CREATE TABLE n AS SELECT 0 AS n"))
    )
    proxy.lose = lost

    def count(connection: Connection) -> int:
        return int(connection.execute(text("UPDATE n SET n = n + 1 RETURNING n")).scalar_one())

    assert await store.transact("counting", count) == 1
    assert proxy.lost == 1
    assert await store.query("reading", lambda c: c.execute(text("SELECT n FROM n")).scalar_one()) == 1


@pytest.mark.parametrize(("lost", "stored"), [("commit", ["b"]), ("reply", ["a", "b"])])
async def test_a_step_whose_fate_nobody_learns_in_time_is_in_nobodys_way(
    through: Database, proxy: Proxy, lost: str, stored: list[str]
) -> None:
    store = await through.open(timeout=0.3, limits=WriterLimits(probe_seconds=0.05))
    await store.save_session(session())
    proxy.lose, proxy.away_after = lost, True
    with pytest.raises(StoreError, match="connection lost"):
        await store.save_step(step(step_id="a", sequence=0), {b"k": b"v"})
    proxy.refuse = False
    await until_it_writes(store)
    await store.save_step(step(step_id="b", sequence=1), {b"k": b"v"})
    assert await step_ids(store) == stored
    assert await store.read_blobs("s1", [b"k"]) == {b"k": b"v"}


@pytest.mark.parametrize("lost", ["commit", "reply"])
async def test_a_fenced_write_of_unknown_outcome_is_made_good_by_its_owner_alone(
    through: Database, proxy: Proxy, postgres_url: str, lost: str
) -> None:
    owner, other = Rival(await through.open()), Rival(await Database(postgres_url).open())
    await owner.live()
    await other.live()
    fence = await owner.create("s1")
    proxy.lose = lost
    first = await owner.write(fence)
    assert await other.steps_of("s1") == {first}
    proxy.lose, proxy.away_after = lost, True
    proxy.happened.clear()
    writing = asyncio.create_task(owner.write(fence))
    async with asyncio.timeout(30):
        await proxy.happened.wait()
    await other.store.transact("lapse", lambda c: other.sql.end(c, owner.lease.sidecar_id))
    taken = await other.take("s1")
    proxy.refuse = False
    with pytest.raises(StoreError):
        await writing
    last = await other.write(taken)
    found = await other.steps_of("s1")
    assert {first, last} <= found
    assert len(found) == (3 if lost == "reply" else 2), "what was committed before the take-over stays"
    assert proxy.lost == 2
    await other.store.close()


@pytest.mark.parametrize("fault", [Proxy.cut, Proxy.hold])
async def test_a_lost_connection_is_replaced_for_reads_and_writes(
    through: Database, proxy: Proxy, fault: Callable[[Proxy], None]
) -> None:
    store = await through.open(timeout=1)
    await store.save_session(session())
    fault(proxy)
    writing = asyncio.create_task(store.save_step(step(), {b"k": b"v"}))
    reading = asyncio.create_task(store.counts())
    await asyncio.sleep(0)
    if fault is Proxy.hold:  # the first attempts run into their bound
        asyncio.get_running_loop().call_later(1.2, proxy.release)
    await writing
    assert (await reading)["sessions"] == 1
    assert await step_ids(store) == ["a"]
    assert store.failure() is None


async def test_a_server_that_stays_away_fails_the_calls_within_the_bound_and_is_found_again(
    through: Database, proxy: Proxy
) -> None:
    store = await through.open(timeout=0.3, limits=WriterLimits(batch_writes=4, probe_seconds=0.05))
    await store.save_session(session())
    proxy.refuse = True
    proxy.cut()
    calls = [store.save_step(step(step_id=f"{index}", sequence=index), {}) for index in range(12)]
    async with asyncio.timeout(30):
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(outcome, StoreError) for outcome in outcomes)
    assert all("connection lost" in str(outcome) for outcome in outcomes)
    assert f"127.0.0.1:{proxy.port}" in str(outcomes[0])
    assert "not-shown" not in str(outcomes)
    assert "connection lost" in (store.failure() or "")
    with pytest.raises(StoreError, match="connection lost"):
        await store.counts()
    proxy.refuse = False
    await until_it_writes(store)
    await store.save_step(step(), {})
    assert await step_ids(store) == ["a"]


async def test_a_server_that_is_not_there_at_the_start_is_named(through: Database, proxy: Proxy) -> None:
    proxy.refuse = True
    with pytest.raises(StoreError, match=rf"127\.0\.0\.1:{proxy.port}/postgres: connection lost") as caught:
        await through.open(timeout=0.2)
    assert "not-shown" not in str(caught.value)


async def test_a_start_waits_for_a_server_that_is_starting(through: Database, proxy: Proxy) -> None:
    proxy.refuse = True
    asyncio.get_running_loop().call_later(0.2, setattr, proxy, "refuse", False)
    store = await through.open(timeout=30)
    assert store.failure() is None


FAIL = """
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'no space left, and a row in the detail' USING ERRCODE = '{state}', DETAIL = 'hidden'; END $$
"""


@pytest.mark.parametrize(
    ("state", "words"),
    [("53100", ("disk full", "free space")), ("58030", ("input/output error",)), ("XX001", ("corrupt", "a copy"))],
)
async def test_a_server_that_cannot_write_says_so_until_it_can(
    postgres: Postgres, postgres_url: str, state: str, words: tuple[str, ...]
) -> None:
    store = SqlStore(postgres_url, limits=WriterLimits(probe_seconds=0.05), timeout=0.5)
    await store.start()
    await store.save_session(session())
    await store.save_step(step(step_id="before", sequence=0), {})
    await postgres.execute(FAIL.format(state=state), url=postgres_url)
    for table in ("step", "meta"):
        await postgres.execute(
            f"CREATE TRIGGER fails BEFORE INSERT ON {table} EXECUTE FUNCTION fail()", url=postgres_url
        )
    with pytest.raises(StoreError, match="step a of session s1") as caught:
        await store.save_step(step(sequence=1), {})
    for word in words:
        assert word in str(caught.value)
        assert word in (store.failure() or "")
    assert "hidden" not in str(caught.value)
    assert await step_ids(store) == ["before"]
    for table in ("step", "meta"):
        await postgres.execute(f"DROP TRIGGER fails ON {table}", url=postgres_url)
    await until_it_writes(store)
    await store.save_step(step(sequence=1), {})
    assert await step_ids(store) == ["before", "a"]
    await store.close()


async def test_a_deadlock_is_tried_again(postgres: Postgres, postgres_url: str) -> None:
    store = SqlStore(postgres_url)
    await store.start()
    await store.save_session(session())
    await postgres.execute("CREATE SEQUENCE tries", url=postgres_url)
    await postgres.execute(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF nextval('tries') < 3 THEN "
        "RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01'; END IF; RETURN NEW; END $$",
        url=postgres_url,
    )
    await postgres.execute(
        "CREATE TRIGGER fails BEFORE INSERT ON step FOR EACH ROW EXECUTE FUNCTION fail()", url=postgres_url
    )
    await store.save_step(step(), {})
    assert await step_ids(store) == ["a"]
    await store.close()
