"""Whatever pauses come and go, a call passes the gate exactly when no pause in force covers it."""

from __future__ import annotations

import asyncio
import time

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from sidecar.generation.gate import Gate, Pause, PauseConflict, call_scopes

SESSIONS, INSTANCES = ("s1", "s2", "s3"), (None, "i1", "i2")
SCOPES = ("all", *(f"session:{name}" for name in SESSIONS), "instance:i1", "instance:i2")


class GateMachine(RuleBasedStateMachine):
    """The model is a dict of pauses by scope; callers are tasks with the scopes they wait for."""

    callers = Bundle("callers")

    @initialize()
    def start(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.expired: dict[str, asyncio.Event] = {}
        self.gate = Gate(lambda pause: self.expired[pause.pause_id].set())
        self.pauses: dict[str, str] = {}
        self.tasks: dict[asyncio.Task[None], tuple[str, ...]] = {}
        self.number = 0

    def settle(self) -> None:
        async def turns() -> None:
            for _ in range(4):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())

    def call(self, action: object) -> None:
        async def inside() -> None:
            action()  # type: ignore[operator]

        self.loop.run_until_complete(inside())

    @rule(scope=st.sampled_from(SCOPES))
    def add(self, scope: str) -> None:
        self.number += 1
        new = Pause(f"p{self.number}", scope, "abort", None, time.time() + 600)
        try:
            self.call(lambda: self.gate.add(new))
        except PauseConflict:
            assert scope in self.pauses
        else:
            assert scope not in self.pauses
            self.pauses[scope] = new.pause_id

    @precondition(lambda self: self.pauses)
    @rule(data=st.data())
    def lift(self, data: st.DataObject) -> None:
        scope = data.draw(st.sampled_from(sorted(self.pauses)))
        self.call(lambda: self.gate.lift(self.pauses.pop(scope)))

    @precondition(lambda self: self.pauses)
    @rule(data=st.data())
    def run_out(self, data: st.DataObject) -> None:
        scope = data.draw(st.sampled_from(sorted(self.pauses)))
        pause_id = self.pauses.pop(scope)

        async def expire() -> None:
            self.expired[pause_id] = asyncio.Event()
            self.gate.renew(pause_id, time.time() - 1)
            await asyncio.wait_for(self.expired[pause_id].wait(), 30)

        self.loop.run_until_complete(expire())

    @rule()
    def lift_all(self) -> None:
        self.call(lambda: self.gate.lift(None))
        self.pauses.clear()

    @rule(target=callers, session=st.sampled_from(SESSIONS), instance=st.sampled_from(INSTANCES))
    def arrive(self, session: str, instance: str | None) -> asyncio.Task[None]:
        scopes = call_scopes(session, instance)
        task = self.loop.create_task(self.gate.wait_open(scopes))
        self.tasks[task] = scopes
        return task

    @rule(task=consumes(callers))
    def give_up(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        self.settle()
        self.tasks.pop(task, None)

    @invariant()
    def a_caller_waits_exactly_while_a_pause_covers_it(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.settle()
        for task, scopes in list(self.tasks.items()):
            if task.done():  # since the last look; what is paused later does not call it back
                assert not set(scopes) & set(self.pauses)
                del self.tasks[task]
        waiting = {task: scopes for task, scopes in self.tasks.items() if not task.done()}
        for scopes in waiting.values():
            assert set(scopes) & set(self.pauses)
        assert self.gate.suspended == len(waiting)
        for scope in SCOPES:
            assert self.gate.held(scope) == sum(scope in scopes for scopes in waiting.values())
            assert (self.gate.find(scope) is not None) == (scope in self.pauses)
        assert self.gate.open == (not self.pauses)

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.call(lambda: self.gate.lift(None))
            self.settle()
            assert self.gate.suspended == 0
            assert all(task.done() for task in self.tasks)
            self.gate.close()
            self.loop.close()


TestGate = GateMachine.TestCase
TestGate.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
