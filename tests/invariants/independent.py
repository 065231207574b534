"""I7: many calls of one session, all of them held by the engine at once, released one by one in any order.

One event loop. The engine decides when a reply goes on, so that no call can have waited for another by chance.
"""

import asyncio
import json
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from tests.fake_sglang import Reply
from tests.invariants.wire import Answer, call
from tests.invariants.world import World

_PATIENCE = 15.0
"""Seconds after which a call counts as one that waits for another; generous, the machine may be busy."""
_TEXT = "one two three four five six"


@dataclass(frozen=True)
class Held:
    """A call that the engine stops after `after` ids. `place` is where it goes on: a root, the first turn, or
    there with the messages of another call (a sibling). `leaves`: its agent goes in place of its reply."""

    place: str
    after: int
    stream: bool
    leaves: bool


@dataclass(frozen=True)
class Crowd:
    """`order` is the order in which the held calls are released; after each a call that nothing holds is made."""

    calls: tuple[Held, ...]
    order: tuple[int, ...]


@dataclass
class _Flight:
    """A call under way. `go` lets the engine finish its reply."""

    held: Held
    seed: int
    go: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[Answer] = field(init=False)


@st.composite
def crowds(draw: st.DrawFn) -> Crowd:
    """Two to six calls."""
    places = st.sampled_from(["root", "first turn", "first turn", "same"])
    one = st.builds(Held, places, st.integers(0, 4), st.booleans(), st.sampled_from([False, False, False, True]))
    calls = draw(st.lists(one, min_size=2, max_size=6).map(tuple))
    return Crowd(calls, tuple(draw(st.permutations(range(len(calls))))))


async def independent_example(world: World, crowd: Crowd) -> None:
    """All calls are in the engine at once; each is answered as soon as its own reply is complete."""
    session_id = world.new_session()
    first = await _quick(world, session_id, [{"role": "user", "content": "Begin."}])
    flights = [_start(world, session_id, held, first) for held in crowd.calls]
    try:
        for number, flight in enumerate(flights):
            await _within(_in_engine(world, session_id, flight), f"call {number} is not sampled")
        await _release(world, session_id, flights, crowd.order, first)
    finally:
        for flight in flights:
            flight.go.set()
            flight.task.cancel()
        await asyncio.gather(*(flight.task for flight in flights), return_exceptions=True)


async def _release(
    world: World, session_id: str, flights: list[_Flight], order: tuple[int, ...], first: list[dict[str, Any]]
) -> None:
    ended: list[int] = []
    for number in order:
        await _within(_quick(world, session_id, first), "a call that nothing holds is not answered")
        flight = flights[number]
        if flight.held.leaves:
            flight.task.cancel()
        else:
            flight.go.set()
            answer = await _within(asyncio.shield(flight.task), f"call {number} is not answered")
            assert answer.complete, f"I7: call {number} was answered {answer}"
            assert answer.messages[0]["content"] == _TEXT, f"I7: call {number} was answered {answer}"
        ended.append(number)
        early = [other for other, one in enumerate(flights) if other not in ended and one.task.done()]
        assert not early, f"I7: the calls {early} were answered before their replies were complete"
    view = await world.view(session_id)
    committed = {step["step_id"] for step in view["steps"] if step["state"] == "committed"}
    answered = {flight.task.result().step_ids[0] for flight in flights if not flight.held.leaves}
    assert answered <= committed, f"I7: of {answered} only {answered & committed} were committed"
    assert len(answered) == sum(not flight.held.leaves for flight in flights), "I7: two calls share a step"


def _start(world: World, session_id: str, held: Held, first: list[dict[str, Any]]) -> _Flight:
    flight = _Flight(held, world.new_seed())
    world.plan(flight.seed, Reply(text=_TEXT, hold=flight.go, hold_after=held.after, chunk_tokens=1))
    words = {"role": "user", "content": "The same." if held.place == "same" else f"Call {flight.seed}."}
    history = [] if held.place == "root" else first
    flight.task = asyncio.create_task(_call(world, session_id, [*history, words], flight.seed, held.stream))
    return flight


async def _quick(world: World, session_id: str, history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A call that nothing holds; the history after its reply."""
    seed = world.new_seed()
    world.plan(seed, Reply(text="ok"))
    messages = [*history, {"role": "user", "content": f"Quick {seed}."}]
    answer = await _call(world, session_id, messages, seed, False)
    assert answer.complete, f"I7: not answered: {answer}"
    return [*messages, answer.messages[0]]


async def _call(world: World, session_id: str, messages: list[dict[str, Any]], seed: int, stream: bool) -> Answer:
    body = {"model": "m", "messages": messages, "seed": seed, "stream": stream}
    return await call(world.data, session_id, json.dumps(body).encode())


async def _in_engine(world: World, session_id: str, flight: _Flight) -> None:
    """Until the engine has sampled up to the hold."""

    def reached() -> bool:
        requests = world.requests(session_id, flight.seed)
        return bool(requests) and len(requests[0].output_ids) >= flight.held.after

    await world.engine.wait_until(reached)


async def _within[T](waiting: Awaitable[T], complaint: str) -> T:
    try:
        async with asyncio.timeout(_PATIENCE):
            return await waiting
    except TimeoutError:
        raise AssertionError(f"I7: {complaint} while other calls of its session are held") from None
