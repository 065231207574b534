"""The state machine: any actions in any order, and what holds after each of them and at the end.

An action is followed at once by the next one (`rush`), or by a look at everything when nothing moves any more. Each
example has a sidecar, an engine and an event loop of its own; between actions the loop stands still. What is drawn
never depends on how quickly things happened, so an example can be played again.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.state_machine.actions import Actions
from tests.state_machine.calls import Shape
from tests.state_machine.checks import look
from tests.state_machine.clock import SkippingLoop
from tests.state_machine.ending import finish, read_back
from tests.state_machine.model import SCOPES, SESSIONS, Model
from tests.state_machine.settling import settle
from tests.state_machine.world import STALLS, WINDOW, Place, Quirks, World

RUSH = st.sampled_from([False, False, True])
WHICH = st.integers(0, 7)
MORE = st.sampled_from([1, 1, 2, 2, 3, 9])
SHAPES = st.builds(
    Shape,
    stream=st.booleans(),
    sdk=st.booleans(),
    length=st.integers(3, 9),
    max_tokens=st.sampled_from([None, None, None, None, 1, 4]),
    stop_at=st.sampled_from([None, None, None, None, 1, 2]),
    penalty=st.sampled_from([False, False, False, False, True]),
    chunked=st.booleans(),
    queued=st.sampled_from([False, False, True]),
).map(lambda shape: shape if shape.stop_at is None else Shape(**{**vars(shape), "length": shape.stop_at + 4}))
QUIRKS = st.builds(
    Quirks,
    incremental=st.booleans(),
    version_spans=st.sampled_from([True, True, False]),
    abort_overrun=st.integers(0, 1),
    partial_rollout=st.sampled_from([True, True, True, False]),
)


class Machine(RuleBasedStateMachine):
    """`place` is given by the test."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place
        self.runner = asyncio.Runner(loop_factory=SkippingLoop)
        self.state = Path(tempfile.mkdtemp(dir=place.state_dir))
        self.failed = False
        self.opened = False

    @initialize(quirks=QUIRKS, shape=SHAPES)
    def begin(self, quirks: Quirks, shape: Shape) -> None:
        """Everything is new; one reply is under way."""
        loop = self.runner.get_loop()
        assert isinstance(loop, SkippingLoop)
        self.world = World(self.place, quirks, self.state, loop)
        self.model = Model(one_version=not quirks.partial_rollout)
        self.actions = Actions(self.world, self.model)
        self.runner.run(self._open())
        self.opened = True
        self.act(_now(lambda: self.actions.start("s1", False, shape)), False)
        self.act(_now(lambda: self.world.policy.allow(self.model.calls[-1].seed, 2)), False)

    async def _open(self) -> None:
        await self.world.open()
        for session, instance in SESSIONS.items():
            fields = {"instance_id": instance} if instance is not None else {}
            assert (await self.world.post("/session/open", session_id=session, **fields))[0] == 200

    def act(self, action: Coroutine[Any, Any, None], rush: bool) -> None:
        """One step of the example."""

        async def inside() -> None:
            self.model.now += 1
            await action
            self.actions.settled = not rush
            if rush:
                await asyncio.sleep(0)
                return
            await settle(self.world, self.model)
            await look(self.world, self.model)

        try:
            self.runner.run(inside())
        except BaseException:
            self.failed = True
            raise

    # Agents.

    @rule(session=st.sampled_from([*SESSIONS]), goes_on=st.booleans(), shape=SHAPES, rush=RUSH)
    def start(self, session: str, goes_on: bool, shape: Shape, rush: bool) -> None:
        """An agent calls."""
        self.act(_now(lambda: self.actions.start(session, goes_on, shape)), rush)

    @rule(session=st.sampled_from([*SESSIONS]), shape=SHAPES, more=MORE, rush=RUSH)
    def turn(self, session: str, shape: Shape, more: int, rush: bool) -> None:
        """The next turn of a conversation, which the engine begins to answer, or answers."""
        self.act(_now(lambda: self.actions.start(session, True, shape)), rush)
        self.act(_now(lambda: self.world.policy.allow(self.model.calls[-1].seed, more)), rush)

    @precondition(lambda self: self.model.calls)
    @rule(which=WHICH, more=MORE, rush=RUSH)
    def sample(self, which: int, more: int, rush: bool) -> None:
        """The engine samples some ids of a reply."""
        seed = self._newest(which).seed
        self.act(_now(lambda: self.world.policy.allow(seed, more)), rush)

    @precondition(lambda self: self.model.calls)
    @rule(which=WHICH, marked=st.sampled_from([True, True, False]), rush=RUSH)
    def repeat(self, which: int, marked: bool, rush: bool) -> None:
        """The very bytes again: by the client's library, which marks it, or by an agent that does not."""
        self.act(_now(lambda: self.actions.follow(self._newest(which), marked=marked)), rush)

    @precondition(lambda self: self.model.calls)
    @rule(which=WHICH, rush=RUSH)
    def leave(self, which: int, rush: bool) -> None:
        """An agent hangs up."""
        followers = self.model.followers
        follower = followers[len(followers) - 1 - which % len(followers)]
        self.model.departures += 1
        self.act(_now(lambda: self.actions.leave(follower)), rush)

    # The trainer.

    @rule(
        scope=st.sampled_from(["all", "all", *SCOPES]),
        mode=st.sampled_from(["abort", "abort", "drain", "hold"]),
        timeout=st.sampled_from([3600.0, 3600.0, 0.0]),
        rush=RUSH,
    )
    def pause(self, scope: str, mode: str, timeout: float, rush: bool) -> None:
        """A pause; `hold` is of everything."""
        self.act(self.actions.pause("all" if mode == "hold" else scope, mode, timeout), rush)

    @precondition(lambda self: self.model.pauses or self.model.lifted)
    @rule(which=WHICH, rush=RUSH)
    def renew(self, which: int, rush: bool) -> None:
        """A pause's lease is renewed, or that of one which is over."""
        pause_id = self._pause_id(which)
        pause = self.model.pause(pause_id)
        scope, mode = (pause.scope, pause.mode) if pause is not None else ("all", "abort")
        self.act(self.actions.pause(scope, mode, 3600.0, pause_id), rush)

    @precondition(lambda self: self.model.pauses or self.model.lifted)
    @rule(which=WHICH, everything=st.booleans(), rush=RUSH)
    def resume(self, which: int, everything: bool, rush: bool) -> None:
        """One pause is lifted, or all are."""
        self.act(self.actions.resume(None if everything else self._pause_id(which)), rush)

    @precondition(lambda self: self.model.pauses)
    @rule(which=WHICH, rush=RUSH)
    def run_out(self, which: int, rush: bool) -> None:
        """A lease ends."""
        pauses = list(self.model.pauses.values())
        self.act(self.actions.run_out(pauses[which % len(pauses)]), rush)

    @rule(rush=RUSH)
    def update(self, rush: bool) -> None:
        """The weights are replaced, whether or not anybody has paused."""
        self.act(_now(self.actions.update), rush)

    @precondition(lambda self: not self.model.down)
    @rule(mode=st.sampled_from(["abort", "abort", "drain"]), rush=RUSH, more=MORE, which=WHICH)
    def weights(self, mode: str, rush: bool, more: int, which: int) -> None:
        """What a training loop does after every step; the engine samples on at once."""
        held = self.model.pauses.get("all")
        self.act(self.actions.pause("all", held.mode if held is not None else mode, 0.0), rush)
        self.act(_now(self.actions.update), rush)
        self.act(self.actions.resume(None), rush)
        if self.model.calls:
            self.act(_now(lambda: self.world.policy.allow(self._newest(which).seed, more)), rush)

    @precondition(lambda self: self.model.now > 8)
    @rule(session=st.sampled_from([*SESSIONS]), how=st.sampled_from(["wait", "abort", "discard"]), rush=RUSH)
    def close(self, session: str, how: str, rush: bool) -> None:
        """A session ends: what runs in it is waited for, or aborted, or it is thrown away."""
        path = "discard" if how == "discard" else "finalize"
        self.act(self.actions.close(session, path, 3600.0 if how == "wait" else 0.0), rush)

    # The engine.

    @rule(which=WHICH, everything=st.booleans(), rush=RUSH)
    def abort(self, which: int, everything: bool, rush: bool) -> None:
        """Somebody else aborts a call, or all."""
        call = None if everything or not self.model.calls else self._newest(which)
        self.act(_now(lambda: self.actions.abort(call)), rush)

    @precondition(lambda self: self.model.calls and self.model.preemptions < 2 * STALLS)
    @rule(which=WHICH)
    def storm(self, which: int) -> None:
        """A call is aborted again and again, and gets no token in between."""
        for _ in range(STALLS + 2):
            self.act(_now(lambda: self.actions.abort(self._newest(which))), False)

    @rule(mode=st.sampled_from([None, None, "abort", "retract", "in_place"]), rush=RUSH)
    def hold_engine(self, mode: str | None, rush: bool) -> None:
        """The engine is paused behind the sidecar's back, or goes on."""
        self.act(self.actions.let_engine_go() if mode is None else self.actions.hold_engine(mode), rush)

    @rule(stays_down=st.sampled_from([False, False, True]), rush=RUSH)
    def restart_engine(self, stays_down: bool, rush: bool) -> None:
        """The engine's process dies, and comes back."""
        self.act(self._restart_engine(stays_down), rush)

    async def _restart_engine(self, stays_down: bool) -> None:
        await self.actions.stop_engine()
        if not stays_down:
            await self.actions.start_engine()

    # Time, and the operator.

    @precondition(lambda self: self.model.departures)
    @rule()
    def window(self) -> None:
        """Nobody comes back for a long time."""
        self.act(self._window(), False)

    async def _window(self) -> None:
        self.model.departures = 0
        await settle(self.world, self.model)
        if not self._busy:
            self.world.loop.skip(WINDOW)

    @property
    def _busy(self) -> bool:
        """The trainer waits for something, so that time does not pass; what is drawn must not depend on it."""
        return any(not command.task.done() for command in self.model.commands)

    @precondition(lambda self: self.model.now > 6 and not self.model.restarts)
    @rule()
    def restart(self) -> None:
        """The sidecar is restarted."""
        self.act(self._restart(), False)

    async def _restart(self) -> None:
        self.model.restarts.append(self.model.now)
        await settle(self.world, self.model)
        if not self._busy:
            await self.actions.restart()

    def teardown(self) -> None:
        """All ends well, unless it did not before."""
        try:
            if self.opened:
                self.runner.run(self._end())
        finally:
            self.runner.close()
            shutil.rmtree(self.state)

    async def _end(self) -> None:
        try:
            if not self.failed:
                self.model.now += 1
                await settle(self.world, self.model)
                await look(self.world, self.model)
                await finish(self.world, self.model)
                await read_back(self.world, self.model)
        finally:
            await self._hang_up()
            await self.world.pass_time_until(self.world.close())
        if not self.failed:
            left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            assert not left, f"leak: tasks {left}"

    async def _hang_up(self) -> None:
        tasks = [one.task for one in [*self.model.followers, *self.model.commands] if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _newest(self, which: int) -> Any:
        calls = self.model.calls
        return calls[len(calls) - 1 - which % len(calls)]

    def _pause_id(self, which: int) -> str:
        known = [*(pause.pause_id for pause in self.model.pauses.values()), *reversed(self.model.lifted)]
        return known[which % len(known)]


async def _now(action: Any) -> None:
    action()
