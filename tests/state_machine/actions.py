"""What agents, trainer, engine and operator do: each action changes the world and notes in the model what follows.

Control-plane calls are awaited until their effect is visible; what agents and engine make of it is not waited for.
"""

import asyncio
from typing import Any

from tests.state_machine.calls import STOP_TEXT, Call, Follower, Shape
from tests.state_machine.model import SESSIONS, Command, Model, Pause
from tests.state_machine.world import World
from tests.support.waiting import until

LEASE = 86400.0


class Actions:
    """The actions on one world. `settled`: nothing moved before the present one, so that its outcome is certain."""

    def __init__(self, world: World, model: Model) -> None:
        self.world = world
        self.model = model
        self.settled = True

    # Agents.

    def start(self, session: str, goes_on: bool, shape: Shape) -> None:
        """A new call: the session's next turn, or the first of a new conversation."""
        seed = 10 * (len(self.model.calls) + 1)
        messages = [*(self._history(session) if goes_on else ()), {"role": "user", "content": f"call {seed}"}]
        body: dict[str, Any] = {"model": "m", "messages": messages, "seed": seed, "stream": shape.stream}
        body |= {"max_tokens": shape.max_tokens} if shape.max_tokens is not None else {}
        body |= {"stop": STOP_TEXT} if shape.stop_at is not None else {}
        body |= {"frequency_penalty": 0.5} if shape.penalty else {}
        call = Call(seed, session, SESSIONS[session], shape, body)
        self.model.calls.append(call)
        self.world.policy.add(call)
        self.follow(call, marked=False)

    def _history(self, session: str) -> list[dict[str, Any]]:
        """The conversation after the reply that came last."""
        told = [one for one in self.model.followers if one.call.session == session and one.complete]
        if not told:
            return []
        newest = max(told, key=lambda one: (one.ended or 0, one.call.seed))
        reply = {"role": "assistant", "content": newest.text}
        return [*newest.call.body["messages"], reply]

    def follow(self, call: Call, *, marked: bool) -> None:
        """Send a call's bytes. A marked retry is given the step that runs, else the one that is committed."""
        expected = None
        if marked and self.settled and call.session not in self.model.closed:
            running = self.world.runs_of(call.seed)
            told = [one for one in call.followers if one.complete]
            if running:
                expected = running[-1].step_id
            elif told:
                session = self.world.session(call.session)
                nodes = [node for one in told if session and (node := session.trajectory.get(one.step_id or ""))]
                newest = max(nodes, key=lambda node: node.record.sequence or 0, default=None)
                expected = newest.record.step_id if newest is not None else None
        follower = Follower(call, marked, self.model.now, expected)
        call.followers.append(follower)
        follower.task = asyncio.create_task(self.world.agents.follow(follower))

    def leave(self, follower: Follower) -> None:
        """Hang up."""
        assert follower.task is not None
        follower.left = follower.waits
        follower.task.cancel()

    # The trainer.

    async def pause(self, scope: str, mode: str, timeout: float, pause_id: str | None = None) -> None:
        """Pause, or renew by `pause_id`; until the gate is closed, or the call refused."""
        model, gate = self.model, self.world.gate
        current = model.pause(pause_id) if pause_id is not None else model.pauses.get(scope)
        where = {} if scope == "all" else {f"{scope.split(':')[0]}_id": scope.split(":")[1]}
        asked = {"pause_id": pause_id} if pause_id is not None else {"mode": mode, **where}
        closes = scope if current is None else current.scope
        before = gate.find(closes)
        post = self.world.post("/v1/rollout/pause", **asked, timeout_seconds=timeout, lease_seconds=LEASE)
        task = asyncio.create_task(post)
        refusal = self._refusal(scope, mode, pause_id, current)
        await until(
            lambda: (
                task.done() or (refusal is None and gate.find(current.scope if current else scope) is not before)
            ),
            "the pause closes the gate",
        )
        pause = current
        if current is None and refusal is None:
            found = gate.find(scope)
            assert found is not None, f"pause: refused with {task.result()}"
            pause = model.pauses[scope] = Pause(found.pause_id, scope, mode)

        def check(status: int, reply: dict[str, Any]) -> None:
            if refusal is not None:
                assert (status, reply["error"]["code"]) == refusal, f"pause: {reply}, and not {refusal}"
                return
            assert pause is not None
            if status != 200:
                code = reply["error"]["code"]
                assert code == "pause_expired" and pause.pause_id in model.lifted, f"pause: {pause}: {reply}"
                return
            self._check_pause(pause, "already_paused" if current is not None else "paused", reply)

        def may_wait(world: World) -> bool:
            assert pause is not None
            in_force = pause.pause_id not in model.lifted
            return pause.mode == "drain" and in_force and bool(world.active.of(pause.scope))

        model.commands.append(Command(f"pause {scope} {mode}", task, may_wait, check))

    def _refusal(
        self, scope: str, mode: str, pause_id: str | None, current: Pause | None
    ) -> tuple[int, str] | None:
        if pause_id is not None:
            return None if current is not None else (409, "pause_expired")
        if current is not None:
            return None if current.mode == mode else (409, "pause_conflict")
        if mode == "hold" and (self.model.down or not self.world.quirks.version_spans):
            return 400, "hold_unsupported"
        return None

    def _check_pause(self, pause: Pause, status: str, reply: dict[str, Any]) -> None:
        told = {name: reply[name] for name in ("status", "pause_id", "scope", "mode")}
        right = {"status": status, "pause_id": pause.pause_id, "scope": pause.scope, "mode": pause.mode}
        assert told == right, f"pause: {told}, not {right}"
        assert reply["quiesced"] == (reply["active"] == 0 == len(reply["running_request_ids"])), (
            f"quiesced: {reply}"
        )
        aborted = {*reply["preempted_request_ids"], *reply["abort_failed_request_ids"]}
        assert pause.mode == "abort" or not aborted, f"pause: {pause.mode} aborted {aborted}"
        pause.quiet = pause.quiet or reply["quiesced"]

    async def resume(self, pause_id: str | None) -> None:
        """Lift one pause, or all."""
        model = self.model
        status, reply = await self.world.post("/v1/rollout/resume", **({"pause_id": pause_id} if pause_id else {}))
        pause = model.pause(pause_id) if pause_id is not None else None
        if pause_id is not None and pause is None:
            assert (status, reply["error"]["code"]) == (409, "pause_expired"), f"resume: {reply}"
        elif pause_id is None and not model.pauses:
            assert (status, reply["status"]) == (200, "already_running"), f"resume: {reply}"
        elif model.down:
            assert (status, reply["error"]["code"]) == (503, "backend_not_ready"), f"resume: {reply}"
        else:
            assert (status, reply["status"]) == (200, "resumed"), f"resume: {reply}"
            for one in [pause] if pause is not None else list(model.pauses.values()):
                model.lift(one)
            assert reply["paused"] == bool(model.pauses), f"resume: {reply}"

    async def run_out(self, pause: Pause) -> None:
        """A pause's lease ends."""
        gate = self.world.gate
        self.world.loop.call_soon(gate.renew, pause.pause_id, 0.0)
        for _ in range(4):
            await asyncio.sleep(0)
        self.model.lift(pause)

    async def close(self, session: str, path: str, timeout: float) -> None:
        """Finalize or discard a session; until no call is let in any more."""
        model, world, name = self.model, self.world, f"closing {session}"
        body = {"session_id": session, **({"timeout_seconds": timeout} if path == "finalize" else {})}
        task = asyncio.create_task(world.post(f"/session/{path}", **body))
        await until(
            lambda: task.done() or (found := world.session(session)) is None or found.closing, "the session closes"
        )
        again = session in model.closed
        model.closed.setdefault(session, model.now)
        if path == "discard":
            model.discarded.add(session)

        def check(status: int, reply: dict[str, Any]) -> None:
            if status == 200:
                return
            code = reply["error"]["code"]
            if code == "no_steps" and not again:
                told = [one for one in model.followers if one.call.session == session and one.complete]
                assert not told, f"finalize: no steps, and {told} were answered"
                model.reopened(session)
                return
            assert code in ("session_discarded", "no_steps", "session_not_found"), f"{path}: {reply}"

        patient = timeout > 0 or any(one.name == name and not one.task.done() for one in model.commands)

        def may_wait(world: World) -> bool:
            """A patient one waits for calls; whatever comes after it waits for it."""
            found = world.session(session)
            return patient and found is not None and any(not run.detached for run in found.runs.values())

        model.commands.append(Command(name, task, may_wait, check))

    # The engine, and those who do things to it.

    def update(self) -> None:
        """New weights."""
        self.model.versions.append(f"w{len(self.model.versions)}")
        self.world.engine.set_weight_version(self.model.versions[-1])

    def abort(self, call: Call | None) -> None:
        """Somebody else aborts a call's engine request, or everything."""
        self.model.preemptions += 1
        running = [] if call is None else [one for one in self.world.policy.requests(call.seed) if not one.done]
        if call is None or running:
            self.world.engine.state.abort(running[-1].rid if running else "", abort_all=call is None)

    async def stop_engine(self) -> None:
        """The engine dies."""
        if not self.model.down:
            self.model.outages.append((self.model.now, None))
            await self.world.engine.down()

    async def start_engine(self) -> None:
        """It comes back."""
        if self.model.down:
            self.model.outages[-1] = (self.model.outages[-1][0], self.model.now)
            await self.world.engine.up()

    async def hold_engine(self, mode: str) -> None:
        """The engine's own pause, of which the sidecar is not told."""
        engine, task = self.world.engine, None
        self.model.preemptions += 1
        if engine.state.paused is None and not self.model.down:
            task = engine.intake.spawn(engine.state.pause(mode))
        await until(lambda: task is None or task.done(), "the engine stands still")  # in mode abort when all ended

    async def let_engine_go(self) -> None:
        """And its end."""
        await self.world.engine.state.resume()

    # The operator.

    async def restart(self) -> None:
        """The sidecar ends and starts again on its state.

        Of a step that runs, the store has what it had when it was detached the last time, if it was."""
        for run in self.world.runs():
            if not run.detached:
                self.model.kept.pop(run.step_id, None)
        await self.world.stop()
        await self.world.start()
