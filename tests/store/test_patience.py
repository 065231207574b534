"""How long calls wait for a database that is away: together within a bound, and anew for a new outage."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.store import patience as module
from sidecar.store.backend import Fault
from sidecar.store.patience import Patience

SECONDS = 10.0


class Clock:
    """In place of the modules `time` and `asyncio`'s sleep: nobody waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class Server:
    """`down` of the next attempts fail."""

    def __init__(self, down: int) -> None:
        self.down = down
        self.attempts = 0

    async def __call__(self) -> str:
        self.attempts += 1
        if self.attempts <= self.down:
            raise ConnectionError("away")
        return "answer"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr(asyncio, "sleep", made.sleep)
    return made


@pytest.fixture
def waiting(clock: Clock) -> Patience:
    return Patience(SECONDS, lambda error: isinstance(error, ConnectionError), lambda error: Fault("away", True))


async def test_an_attempt_that_is_lost_is_made_again(waiting: Patience, clock: Clock) -> None:
    assert await waiting.run(Server(down=9)) == "answer"
    assert clock.now < 1000 + SECONDS


async def test_the_calls_of_one_outage_wait_together_and_later_ones_try_once(
    waiting: Patience, clock: Clock
) -> None:
    for later in (0, 5, 5):
        gone = Server(down=10**6)
        clock.now += later
        with pytest.raises(ConnectionError):
            await waiting.run(gone)
        assert (gone.attempts == 1) is (later > 0)
    assert clock.now < 1000 + 2 * SECONDS


async def test_an_outage_that_nobody_saw_end_does_not_spoil_the_next_one(waiting: Patience, clock: Clock) -> None:
    """A reader that nobody asks meanwhile has no success to tell of: a connection that broke is made again."""
    with pytest.raises(ConnectionError):
        await waiting.run(Server(down=10**6))
    clock.now += 2 * SECONDS
    assert await waiting.run(Server(down=1)) == "answer"
