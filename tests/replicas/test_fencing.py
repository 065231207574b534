"""The statement that guards a session's writes: any order of leases, claims and writes, on both databases."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, text

from sidecar.store.ownership import Fence
from sidecar.store.protocol import LeaseLapsed, SessionHeld, StoreError, StoreFenced
from tests.replicas.rivals import Rival, close_rivals, open_rivals
from tests.store.samples import session, step
from tests.support.postgres import Postgres

RIVALS, SESSIONS = 3, 2


@dataclass
class Arena:
    """The rivals of a test module, and the loop that they live in."""

    runner: asyncio.Runner
    rivals: list[Rival]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def arena(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with asyncio.Runner() as runner:
        if request.param == "sqlite":
            path: Path = tmp_path_factory.mktemp("fencing")
            url = f"sqlite:///{path / 'tito.db'}"
        else:
            server: Postgres = request.getfixturevalue("postgres")
            url = runner.run(server.new_url())
        rivals = runner.run(open_rivals(url, RIVALS))
        yield Arena(runner, rivals)
        runner.run(close_rivals(rivals))


@dataclass
class Model:
    """What has to be in the database: who owns each session in which epoch, and who has a lease."""

    owners: dict[str, tuple[int, int]] = field(default_factory=dict)
    live: set[int] = field(default_factory=lambda: set(range(RIVALS)))
    fences: list[dict[str, list[Fence]]] = field(default_factory=lambda: [{} for _ in range(RIVALS)])
    """Every fence that a rival ever got, oldest first."""
    stored: dict[str, set[str]] = field(default_factory=dict)


WHO = st.integers(0, RIVALS - 1)
WHICH = st.integers(0, SESSIONS - 1)
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("lapse"), WHO, WHICH),
        st.tuples(st.just("live"), WHO, WHICH),
        st.tuples(st.just("claim"), WHO, WHICH),
        st.tuples(st.just("write"), WHO, WHICH),
        st.tuples(st.just("write"), WHO, WHICH),
        st.tuples(st.just("batch"), WHO, WHICH),
    ),
    max_size=25,
)


@settings(max_examples=40)
@given(moves=MOVES)
def test_a_write_is_stored_exactly_while_its_owner_epoch_and_lease_hold(
    arena: Arena, moves: list[tuple[str, int, int]]
) -> None:
    arena.runner.run(play(arena.rivals, moves))


async def play(rivals: list[Rival], moves: list[tuple[str, int, int]]) -> None:
    """One move after the other, compared with the model after each."""
    await asyncio.gather(*(rival.live() for rival in rivals))
    model, names = Model(), [uuid.uuid4().hex for _ in range(SESSIONS)]
    for name in names:
        model.fences[0][name] = [await rivals[0].create(name)]
        model.owners[name], model.stored[name] = (0, 1), set()
    for kind, who, which in moves:
        rival, name = rivals[who], names[which]
        if kind == "lapse":
            await rival.lapse()
            model.live.discard(who)
        elif kind == "live":
            await rival.live()
            model.live.add(who)
        elif kind == "claim":
            await claim(rival, who, name, model)
        else:
            fences = [fence for held in model.fences[who].values() for fence in held]
            chosen = fences if kind == "batch" else [fence for fence in fences if fence.session_id == name]
            await write(rival, who, chosen, model)
    for name in names:
        assert await rivals[-1].steps_of(name) == model.stored[name]


async def claim(rival: Rival, who: int, name: str, model: Model) -> None:
    owner, epoch = model.owners[name]
    if owner != who and owner in model.live:
        with pytest.raises(SessionHeld) as held:
            await rival.take(name)
        assert held.value.seconds_left > 0
        return
    fence = await rival.take(name)
    assert fence.epoch == epoch + 1
    model.owners[name] = (who, epoch + 1)
    model.fences[who].setdefault(name, []).append(fence)
    assert await rival.steps_of(name) == model.stored[name]


async def write(rival: Rival, who: int, fences: list[Fence], model: Model) -> None:
    """All of them at once, so that they share a transaction: each fares as if it were alone."""
    outcomes = await asyncio.gather(*map(rival.write, fences), return_exceptions=True)
    for fence, outcome in zip(fences, outcomes, strict=True):
        if model.owners[fence.session_id] != (who, fence.epoch):
            assert isinstance(outcome, StoreFenced)
        elif who not in model.live:
            assert isinstance(outcome, LeaseLapsed)
        else:
            assert isinstance(outcome, str)
            model.stored[fence.session_id].add(outcome)


SCRIPT = st.lists(st.sampled_from(["write", "write", "lapse", "take"]), min_size=2, max_size=8)
SCRIPTS = st.lists(SCRIPT, min_size=RIVALS, max_size=RIVALS)


@settings(max_examples=25)
@given(scripts=SCRIPTS)
def test_nothing_of_an_older_epoch_is_added_after_a_take_over_has_loaded_the_session(
    arena: Arena, scripts: list[list[str]]
) -> None:
    arena.runner.run(race(arena.rivals, scripts))


async def race(rivals: list[Rival], scripts: list[list[str]]) -> None:
    """All at once: only the databases decide the order."""
    await asyncio.gather(*(rival.live() for rival in rivals))
    name = uuid.uuid4().hex
    first = await rivals[0].create(name)
    loaded: dict[int, set[str]] = {}
    acknowledged: set[str] = set()

    async def run(rival: Rival, fence: Fence | None, script: list[str]) -> None:
        for move in script:
            try:
                if move == "write" and fence is not None:
                    acknowledged.add(await rival.write(fence))
                elif move == "lapse":
                    await rival.lapse()
                elif move == "take":
                    await rival.live()
                    fence = await rival.take(name)
                    assert fence.epoch not in loaded, "two sidecars got the same epoch"
                    loaded[fence.epoch] = await rival.steps_of(name)
            except (StoreFenced, LeaseLapsed, SessionHeld):
                pass

    await asyncio.gather(*(run(*at) for at in zip(rivals, [first, None, None], scripts, strict=True)))
    stored = await rivals[0].steps_of(name)
    assert acknowledged <= stored
    for epoch, seen in loaded.items():
        older = {step_id for step_id in stored if int(step_id.split(".")[0]) < epoch}
        assert older <= seen, f"steps of before epoch {epoch} came after it had begun"


def test_a_take_over_waits_for_a_transaction_whose_fence_held(arena: Arena) -> None:
    async def check() -> None:
        writer, taker, _ = arena.rivals
        await asyncio.gather(*(rival.live() for rival in arena.rivals))
        name = uuid.uuid4().hex
        fence = await writer.create(name)
        order: list[str] = []
        checked = asyncio.Event()
        loop = asyncio.get_running_loop()

        def work(connection: Connection) -> None:
            assert writer.sql.refusals(connection, [fence]) == {}
            loop.call_soon_threadsafe(checked.set)
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_sleep(0.3)"))
            else:
                time.sleep(0.3)
            order.append("written")

        async def take() -> None:
            await checked.wait()
            claimed = await taker.store.transact(
                "take", lambda connection: _take_from(connection, taker, writer, name)
            )
            assert claimed == 2
            order.append("taken")

        await asyncio.gather(writer.store.transact("write", work), take())
        assert order == ["written", "taken"]

    arena.runner.run(check())


def _take_from(connection: Connection, taker: Rival, owner: Rival, name: str) -> int | None:
    taker.sql.end(connection, owner.lease.sidecar_id)
    return taker.sql.claim(connection, name, taker.lease.sidecar_id)


def test_a_session_that_its_owner_claims_again_is_not_written_under_the_old_fence(arena: Arena) -> None:
    async def check() -> None:
        rival = arena.rivals[0]
        await rival.live()
        name = uuid.uuid4().hex
        old = await rival.create(name)
        new = await rival.take(name)
        with pytest.raises(StoreFenced):
            await rival.write(old)
        written = await rival.write(new)
        assert await rival.steps_of(name) == {written}

    arena.runner.run(check())


def test_a_process_that_believes_its_lease_is_over_writes_nothing(arena: Arena) -> None:
    """Whatever the database's clock says."""

    async def check() -> None:
        rival = arena.rivals[0]
        await rival.live()
        fence = await rival.create(uuid.uuid4().hex)
        rival.lease.deadline = time.monotonic() - 1
        with pytest.raises(LeaseLapsed):
            await rival.write(fence)
        await rival.live()
        written = await rival.write(fence)
        assert await rival.steps_of(fence.session_id) == {written}

    arena.runner.run(check())


def test_of_two_that_create_a_session_at_once_one_has_it(arena: Arena) -> None:
    async def create() -> None:
        await asyncio.gather(*(rival.live() for rival in arena.rivals))
        name = uuid.uuid4().hex
        outcomes = await asyncio.gather(*(rival.create(name) for rival in arena.rivals), return_exceptions=True)
        refused = [outcome for outcome in outcomes if not isinstance(outcome, Fence)]
        assert [type(one) for one in refused] == [StoreFenced] * 2

    arena.runner.run(create())


def test_saving_a_session_or_discarding_it_is_fenced_too(arena: Arena) -> None:
    async def check() -> None:
        old, new, _ = arena.rivals
        await asyncio.gather(*(rival.live() for rival in arena.rivals))
        name = uuid.uuid4().hex
        stale = await old.create(name)
        written = await old.write(stale)
        await old.lapse()
        await new.take(name)
        await old.live()
        for attempt in (
            old.store.save_session(session(name, state="finalized"), stale),
            old.store.discard_session(session(name, state="discarded"), stale),
            old.store.save_step(step(name, "late", 5), {b"k": b"v"}, stale),
        ):
            with pytest.raises(StoreFenced):
                await attempt
        loaded = await new.store.load_session(name)
        assert loaded is not None
        assert loaded.row.state == "open"
        assert [record.step_id for record in loaded.steps] == [written]
        with pytest.raises(StoreError, match="no blob"):
            await new.store.read_blobs(name, [b"k"])

    arena.runner.run(check())
