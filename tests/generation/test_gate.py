"""The gate: closed while a pause is in force, and a pause is a lease that ends by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from sidecar.generation.gate import Gate, Pause, PauseConflict, PauseExpired, Scopes, call_scopes
from tests.support.waiting import LIVENESS, until

CALL = call_scopes("s", "i")


def pause(pause_id: str = "p", *, scope: str = "all", mode: str = "abort", seconds: float = 60) -> Pause:
    return Pause(pause_id, scope, mode, "a reason", time.time() + seconds)


@pytest.fixture
def expired() -> list[Pause]:
    """The pauses that ended because nobody renewed them."""
    return []


@pytest.fixture
async def gate(expired: list[Pause]) -> Iterator[Gate]:
    one = Gate(expired.append)
    yield one
    one.close()


async def waiting(gate: Gate, count: int = 1, scopes: Scopes = CALL) -> list[asyncio.Task[None]]:
    """Callers that wait at the gate."""
    before = gate.suspended
    tasks = [asyncio.ensure_future(gate.wait_open(scopes)) for _ in range(count)]
    await until(lambda: gate.suspended == before + count, "callers at the gate")
    return tasks


async def opened(gate: Gate) -> None:
    """A caller passes that was held."""
    assert not gate.open
    await all_pass([asyncio.ensure_future(gate.wait_open(CALL))])


async def all_pass(tasks: list[asyncio.Task[None]]) -> None:
    async with asyncio.timeout(LIVENESS):
        await asyncio.gather(*tasks)


async def test_an_open_gate_lets_pass_without_a_turn_of_the_loop(gate: Gate) -> None:
    """Nothing may come between the look at the gate and the request that is sent after it."""
    with pytest.raises(StopIteration):
        gate.wait_open(CALL).send(None)
    assert gate.open
    assert gate.suspended == 0


async def test_a_pause_holds_all_callers_until_it_is_lifted(gate: Gate) -> None:
    gate.add(pause())
    assert not gate.open
    tasks = await waiting(gate, 3)
    assert [one.pause_id for one in gate.lift("p")] == ["p"]
    await all_pass(tasks)
    assert gate.open
    assert gate.suspended == 0


async def test_a_caller_that_gives_up_is_not_counted_any_more(gate: Gate) -> None:
    gate.add(pause())
    [task] = await waiting(gate)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert gate.suspended == 0


async def test_the_gate_opens_when_the_last_of_several_pauses_is_lifted(gate: Gate) -> None:
    gate.add(pause("a", scope="all"))
    gate.add(pause("b", scope="session:s"))
    tasks = await waiting(gate)
    gate.lift("a")
    await asyncio.sleep(0)
    assert not tasks[0].done()
    gate.lift("b")
    await all_pass(tasks)


async def test_a_pause_holds_the_calls_of_its_scope_and_no_others(gate: Gate) -> None:
    gate.add(pause("s", scope="session:s"))
    gate.add(pause("i", scope="instance:j"))
    held = [call_scopes("s", None), call_scopes("s", "i"), call_scopes("other", "j"), call_scopes("s", "j")]
    free = [call_scopes("t", None), call_scopes("t", "i"), call_scopes("j", "s"), call_scopes("all", "all")]
    assert not any(map(gate.open_for, held))
    assert all(map(gate.open_for, free))
    tasks = [task for scopes in held for task in await waiting(gate, scopes=scopes)]
    assert (gate.suspended, gate.held("all"), gate.held("session:s"), gate.held("instance:j")) == (4, 4, 3, 2)
    await all_pass([asyncio.ensure_future(gate.wait_open(scopes)) for scopes in free])
    gate.lift("s")
    await all_pass(tasks[:2])
    assert not tasks[2].done()
    assert not tasks[3].done()
    assert gate.held("session:s") == 1
    gate.lift("i")
    await all_pass(tasks)
    assert gate.suspended == 0


async def test_lifting_all_lifts_all_oldest_first(gate: Gate) -> None:
    gate.add(pause("a", scope="all"))
    gate.add(pause("b", scope="session:s"))
    assert [one.pause_id for one in gate.pauses] == ["a", "b"]
    assert [one.pause_id for one in gate.lift(None)] == ["a", "b"]
    assert gate.open
    assert gate.lift(None) == []


async def test_a_gate_that_closes_again_before_a_caller_runs_holds_it(gate: Gate) -> None:
    gate.add(pause("a"))
    tasks = await waiting(gate)
    gate.lift("a")
    gate.add(pause("b"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not tasks[0].done()
    gate.lift("b")
    await all_pass(tasks)


async def test_one_scope_has_one_pause(gate: Gate) -> None:
    gate.add(pause("a"))
    with pytest.raises(PauseConflict, match="all is paused by a in mode abort"):
        gate.add(pause("b", mode="drain"))
    assert [one.pause_id for one in gate.pauses] == ["a"]
    found = gate.find("all")
    assert found is not None
    assert found.pause_id == "a"
    assert gate.find("session:s") is None


@pytest.mark.parametrize("method", ["require", "lift"])
async def test_an_unknown_pause_is_expired_and_changes_nothing(gate: Gate, method: str) -> None:
    gate.add(pause("a"))
    with pytest.raises(PauseExpired, match="pause b is not in force"):
        getattr(gate, method)("b")
    with pytest.raises(PauseExpired):
        gate.renew("b", time.time() + 60)
    assert not gate.open


async def test_a_lease_that_runs_out_opens_the_gate_and_is_told(gate: Gate, expired: list[Pause]) -> None:
    gate.add(pause("a", seconds=0.02))
    await opened(gate)
    assert [one.pause_id for one in expired] == ["a"]
    with pytest.raises(PauseExpired):
        gate.lift("a")


async def test_a_lease_in_the_past_ends_at_once(gate: Gate, expired: list[Pause]) -> None:
    gate.add(pause("a", seconds=-5))
    await opened(gate)
    assert len(expired) == 1


async def test_a_renewed_lease_lasts_from_the_renewal(gate: Gate, expired: list[Pause]) -> None:
    gate.add(pause("a", seconds=0.02))
    later = time.time() + 60
    assert gate.renew("a", later).lease_expires_at == later
    await asyncio.sleep(0.05)  # beyond the first lease
    assert not gate.open
    assert not expired
    gate.renew("a", time.time())
    await opened(gate)
    assert len(expired) == 1


async def test_a_lifted_pause_does_not_expire_later(gate: Gate, expired: list[Pause]) -> None:
    gate.add(pause("a", seconds=0.02))
    gate.lift("a")
    await asyncio.sleep(0.05)  # beyond its lease
    assert not expired


async def test_a_closed_process_expires_nothing(gate: Gate, expired: list[Pause]) -> None:
    gate.add(pause("a", seconds=0.02))
    gate.close()
    await asyncio.sleep(0.05)  # beyond its lease
    assert not expired
    assert not gate.open
