"""Agents that talk through the deaths of their sidecar, and the one who kills it. One event loop.

Each agent holds one conversation. It hangs up at times, and repeats what got no reply as a client library does: the
same bytes, marked. So every call has to end in one committed step, whatever happened in between.
"""

import asyncio
import random
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from tests.fake_sglang import RecordedRequest
from tests.invariants.agent import Agent
from tests.invariants.aligned import check_aligned, check_once, check_tokens
from tests.invariants.checks import check_exact, check_template, committed
from tests.invariants.journal import Exchange, Journal
from tests.invariants.killing import check_durable
from tests.invariants.moves import Ask, Program
from tests.invariants.oracle import Oracle
from tests.invariants.policy import IM_END, Call, Sample
from tests.invariants.wire import Moment
from tests.recovery.mortal import Mortal

_MOMENTS: tuple[Moment, ...] = ("headers", "bytes", "complete")
_WORDS = ["one", "🎉", "two", "naïve", "日本語", "three\n\nfour", "five", "six", "<|im_end|>", "seven", "eight"]
_MOST_TRIES = 200
"""Attempts at one call; a few of them meet a sidecar that is down."""


class LongJournal(Journal):
    """A call may be sampled in part, or whole, by lives that could not store it: what counts is what the engine
    finished last, and the requests before it whose ids it went on from."""

    def requests(self, step_id: str) -> list[RecordedRequest]:
        """The engine requests of a step that the agent was told of, oldest first."""
        asked = self.world.requests(self.session_id, self.steps()[step_id].seed)
        mine = [next(request for request in reversed(asked) if request.outcome == "finished")]
        while (before := next((one for one in asked if _goes_on(mine[0], one)), None)) is not None:
            mine.insert(0, before)
        return mine


def _goes_on(request: RecordedRequest, before: RecordedRequest) -> bool:
    more = len(request.input_ids) - len(before.input_ids)
    return more > 0 and request.input_ids == before.input_ids + before.output_ids[:more]


class Talker(Agent):
    """Plays until it is told to stop. `up` is set while a sidecar listens."""

    def __init__(self, house: Mortal, rng: random.Random, up: asyncio.Event, notice: Callable[[Moment], None]):
        program = Program("You are an agent.", True, ())
        super().__init__(house.world, house.world.new_session(), program, notice)
        self.journal = LongJournal(self.journal.session_id, house.world, Oracle(self.kwargs))
        self._rng = rng
        self._up = up
        self.turns = 0
        self.hung_up = 0
        self.repeats = 0
        self.resumed = 0
        """Steps that went on from ids of an engine call that was cut off."""

    async def talk(self, enough: asyncio.Event) -> None:
        """Turn after turn."""
        while not enough.is_set():
            await self.turn(patient=self._rng.random() < 0.75)

    async def turn(self, *, patient: bool) -> None:
        """One turn, however many calls it takes; an agent that is not patient hangs up in the middle."""
        exchange = self._prepared()
        sending = asyncio.create_task(self.send(exchange))
        if not patient:
            await self._in_the_middle(exchange, sending)
            if not sending.done():
                self.hung_up += 1
                sending.cancel()
        with suppress(asyncio.CancelledError):
            await sending
        while not _answered(exchange):
            assert exchange.retry_count < _MOST_TRIES, f"no reply to {exchange.raw[:200]!r}: {exchange.answer}"
            exchange = await self._again(exchange)
        self.accept(exchange)
        self.turns += 1

    async def _in_the_middle(self, exchange: Exchange, sending: asyncio.Task[Any]) -> None:
        """Some time after the engine was asked: a call that comes to the sidecar after its own retry is another."""
        world, session = self.world, self.journal.session_id
        while not sending.done() and not world.requests(session, exchange.seed):
            await asyncio.wait([sending], timeout=0.001)
        await asyncio.wait([sending], timeout=self._rng.uniform(0, 0.03))

    async def _again(self, exchange: Exchange) -> Exchange:
        """The client library's retry."""
        await self._up.wait()
        await asyncio.sleep(0.02)
        self.repeats += 1
        again = self.exchange(dict(exchange.body), exchange.raw, exchange.retry_count + 1)
        self.plan(exchange.seed, 1, self.samples[exchange.seed], **self._pace())
        await self.send(again)
        return again

    def _prepared(self) -> Exchange:
        rng = self._rng
        text = " ".join(rng.choices(_WORDS, k=rng.randint(3, 25)))
        calls = (Call("look", '{ "at":1 }'),) * (rng.random() < 0.3)
        sample = Sample(text, "hm" if rng.random() < 0.3 else None, calls, split=rng.randint(0, 9), stop=IM_END)
        ask = Ask(sample, text=" ".join(rng.choices(_WORDS, k=rng.randint(1, 9))), stream=rng.random() < 0.5)
        return self.prepare(ask, self.head(), **self._pace())

    def _pace(self) -> dict[str, Any]:
        return {"chunk_tokens": 1, "delay": self._rng.choice((0.0, 0.001, 0.003))}


def _answered(exchange: Exchange) -> bool:
    answer = exchange.answer
    if answer is None or answer.complete:
        return answer is not None
    status = answer.error.get("status", answer.status) if answer.error else answer.status
    assert status in (0, 200, 503), f"a call of a good agent got {status}: {answer.error}"
    return False


class Reaper:
    """Ends lives at random moments: by what agents see, by the clock, politely, and in the middle of a start."""

    def __init__(self, house: Mortal, rng: random.Random) -> None:
        self._house = house
        self._rng = rng
        self._fuse: tuple[Moment, int] | None = None
        self._burnt = asyncio.Event()
        self.polite = 0
        self.false_starts = 0

    def notice(self, moment: Moment) -> None:
        """Told by the code that reads replies, so that nothing runs between the moment and the kill."""
        if self._fuse is not None and self._fuse[0] == moment:
            self._fuse = (moment, self._fuse[1] - 1)
            if self._fuse[1] == 0:
                self._fuse = None
                self._house.kill()
                self._burnt.set()

    async def end_one_life(self) -> None:
        """Wait for the moment, end the process, and see it gone."""
        rng = self._rng
        if rng.random() < 0.6:
            self._burnt.clear()
            self._fuse = (rng.choice(_MOMENTS), rng.randint(1, 12))
            await asyncio.wait_for(self._burnt.wait(), 60)
        else:
            await asyncio.sleep(rng.uniform(0, 0.15))
            polite = rng.random() < 0.4
            self.polite += polite
            self._house.signal(signal.SIGTERM if polite else signal.SIGKILL)
        await self._house.gone()

    async def raise_the_next(self) -> None:
        """The next process; sometimes one dies before it is up."""
        if self._rng.random() < 0.15:
            self.false_starts += 1
            await self._house.restart_after_a_false_start(self._rng.uniform(0, 0.3))
        else:
            await self._house.restart()


async def endure(house: Mortal, rng: random.Random, agents: int, rounds: int) -> tuple[list[Talker], Reaper]:
    """`agents` talk while `rounds` sidecars die; after each death what the agents have is in the store, and at the
    end all of it is checked."""
    up, enough = asyncio.Event(), asyncio.Event()
    up.set()
    reaper = Reaper(house, rng)
    cast = [Talker(house, random.Random(rng.random()), up, reaper.notice) for _ in range(agents)]
    talking = [asyncio.create_task(agent.talk(enough)) for agent in cast]
    try:
        for _ in range(rounds):
            ending = asyncio.create_task(reaper.end_one_life())
            await asyncio.wait([ending, *talking], return_when=asyncio.FIRST_COMPLETED)
            _raise_failure(talking)
            await ending
            up.clear()
            await reaper.raise_the_next()
            for agent in cast:
                if agent.turns:
                    await check_durable(house, agent)
            up.set()
        enough.set()
        await asyncio.gather(*talking)
    finally:
        for task in talking:
            task.cancel()
        await asyncio.gather(*talking, return_exceptions=True)
    for agent in cast:
        await agent.turn(patient=True)
        await check_session(house, agent)
    await house.world.forget()
    return cast, reaper


def _raise_failure(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done():
            task.result()


async def check_session(house: Mortal, agent: Talker) -> None:
    """I1 to I4 over all lives; one segment, one committed step for each turn, and each of them trains."""
    world, journal = house.world, agent.journal
    await world.engine.wait_idle()
    check_exact(journal, await world.view(journal.session_id))
    segments = await world.segments(journal.session_id)
    view = await world.view(journal.session_id)
    check_template(journal, view)
    check_aligned(journal, view, segments)
    check_tokens(journal, view, segments)
    check_once(journal, view, segments)
    steps = committed(view)
    agent.resumed = sum(len(journal.requests(step_id)) > 1 for step_id in steps)
    assert len(steps) == agent.turns, f"{agent.turns} turns became {len(steps)} steps"
    assert len(segments) == 1, f"one conversation became {len(segments)} segments"
    assert len(segments[0]["extra_info"]["step_ids"]) == agent.turns
