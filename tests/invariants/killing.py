"""Agents that run while their sidecar is killed, and go on with the next one. One event loop."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from hypothesis import strategies as st

from tests.invariants.agent import Agent, NoReplyError
from tests.invariants.checks import committed
from tests.invariants.house import House
from tests.invariants.moves import Ask, Program, Turn, plain_asks
from tests.invariants.wire import Moment

THE_NEXT = Ask(text="And then?")


@dataclass(frozen=True)
class Fuse:
    """Kill at the `count`-th such moment over all agents, or when the engine has sampled `count` tokens."""

    moment: Moment | Literal["sampled"]
    count: int


@dataclass
class Killer:
    """Counts moments and kills once. Told by the reading code itself, so that no other code runs in between."""

    house: House
    fuse: Fuse
    burnt: asyncio.Event = field(default_factory=asyncio.Event)
    seen: int = 0

    def notice(self, moment: Moment) -> None:
        """A moment of some agent's reply."""
        if moment == self.fuse.moment:
            self.seen += 1
            if self.seen == self.fuse.count:
                self.kill()

    def kill(self) -> None:
        """Now."""
        if not self.burnt.is_set():
            self.house.kill()
            self.burnt.set()

    async def watch_engine(self) -> None:
        """Kill by tokens sampled."""
        engine = self.house.world.engine
        if self.fuse.moment == "sampled":
            await engine.wait_until(
                lambda: sum(len(request.output_ids) for request in engine.requests) >= self.fuse.count
            )
            self.kill()


async def play_through(agent: Agent, killer: Killer, restarted: asyncio.Event) -> None:
    """All moves; a call that the kill cut off is repeated as a client library repeats it."""
    for move in agent.program.moves:
        try:
            await agent.make(move)
        except NoReplyError as cut:
            if not killer.burnt.is_set():
                raise
            await restarted.wait()
            await agent.repeat(cut.exchange)


async def play_and_kill(house: House, programs: Sequence[Program], fuse: Fuse) -> list[Agent]:
    """Play all programs at once, kill and restart the sidecar once, check I5 in between, go on to the end."""
    killer, restarted = Killer(house, fuse), asyncio.Event()
    agents = [Agent(house.world, house.world.new_session(), program, killer.notice) for program in programs]
    playing = asyncio.gather(*(play_through(agent, killer, restarted) for agent in agents))
    watching = asyncio.create_task(killer.watch_engine())
    burning = asyncio.create_task(killer.burnt.wait())
    try:
        await asyncio.wait([playing, burning], return_when=asyncio.FIRST_COMPLETED)
        killer.kill()  # a fuse that was too long: nobody is left to disturb
        await house.restart()
        for agent in agents:
            await check_durable(house, agent)
        restarted.set()
        await playing
    finally:
        tasks = (playing, watching, burning)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for agent in agents:  # one more turn each, so that every session goes on in the second life
        await agent.make(Turn(THE_NEXT))
    return agents


async def check_durable(house: House, agent: Agent) -> None:
    """I5: every reply that an agent has whole is a committed step with all of its tokens."""
    journal = agent.journal
    told = [one for one in journal.exchanges if one.answer is not None and one.answer.complete]
    if not told:
        return
    steps = committed(await house.world.view(journal.session_id))
    for exchange in told:
        for step_id in exchange.step_ids:
            assert step_id in steps, f"I5: the agent has the reply of step {step_id}, the sidecar has no such step"
            sampled = len(journal.tokens(step_id)) - len(journal.prompt(step_id))
            stored = steps[step_id]["output_tokens"]
            assert stored == sampled, f"I5: {stored} tokens of step {step_id} are left, {sampled} were sampled"


_turns = st.builds(Turn, plain_asks(), back=st.sampled_from([0, 0, 0, 1]))
casts = st.lists(
    st.builds(
        lambda moves: Program("You are an agent.", True, tuple(moves)), st.lists(_turns, min_size=3, max_size=5)
    ),
    min_size=2,
    max_size=4,
)
fuses = st.one_of(
    st.builds(Fuse, st.just("complete"), st.integers(1, 8)),
    st.builds(Fuse, st.just("bytes"), st.integers(1, 30)),
    st.builds(Fuse, st.just("headers"), st.integers(1, 8)),
    st.builds(Fuse, st.just("sampled"), st.integers(1, 100)),
)
