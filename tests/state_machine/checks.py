"""What holds whenever nothing moves: the invariants of the state machine. Every failure names what was broken.

Reads the sidecar from outside (`pause_state`) and inside (gate, calls in flight, steps); changes only the model's
notes of what was seen.
"""

import asyncio

from tests.state_machine.calls import Follower
from tests.state_machine.model import Model
from tests.state_machine.replies import check_reply
from tests.state_machine.world import World


async def look(world: World, model: Model) -> None:
    """All checks, once."""
    assert not world.policy.violations, world.policy.violations
    _answered(world, model)
    _commands(model)
    _gate(world, model)
    _engine_calls(world, model)
    _steps(world, model)
    await _pause_state(world, model)
    model.inside = frozenset(world.active)
    model.in_force = frozenset(pause.pause_id for pause in model.pauses.values())


def _commands(model: Model) -> None:
    done = [command for command in model.commands if command.task.done()]
    model.commands = [command for command in model.commands if command not in done]
    for command in done:
        command.check(*command.task.result())


def _gate(world: World, model: Model) -> None:
    """The gate is closed for what a pause covers, and for nothing else."""
    found = {pause.scope: (pause.pause_id, pause.mode) for pause in world.gate.pauses}
    wanted = {scope: (pause.pause_id, pause.mode) for scope, pause in model.pauses.items()}
    assert found == wanted, f"gate: it holds the pauses {found}, not {wanted}"
    assert world.gate.open == (not wanted), "gate: it is closed without a pause in force"
    assert world.gate._timers.keys() == {pause_id for pause_id, _ in wanted.values()}, (
        "gate: a lease without a pause"
    )
    for scopes in world.waiting:
        assert model.covering(scopes), f"gate: a call of {scopes} waits, and the pauses are of {list(wanted)}"


def _engine_calls(world: World, model: Model) -> None:
    """No call of a paused scope enters the engine, and one that is said to have ended has."""
    for rid in world.active:
        for pause in model.covering(world.active._calls[rid].scopes):
            known = rid in model.inside or pause.pause_id not in model.in_force
            assert known, f"paused: a call entered the engine while {pause} was in force"
            assert not pause.quiet, f"quiesced: {pause} was quiet, and a call of it runs"


def _steps(world: World, model: Model) -> None:
    """A step is detached when nobody follows it; what it has sampled stays."""
    runs = list(world.runs())
    tasks = [task for task in asyncio.all_tasks() if task.get_name().startswith("step ") and not task.done()]
    assert len(tasks) == len(runs), f"leak: {len(tasks)} tasks of {len(runs)} steps"
    for run in runs:
        assert not run.over, f"leak: step {run.step_id} is over, and its session keeps it"
        assert run.detached == (not run._readers), f"detached: step {run.step_id} has {len(run._readers)} readers"
        if run.generation.request.resumable:
            _kept(model, run.step_id, run.generation.output_ids)
        else:
            model.kept.pop(run.step_id, None)
    waiting = {id(follower.call) for follower in model.followers if follower.waits}
    for call in model.calls:
        followed = [run for run in world.runs_of(call.seed) if not run.detached]
        assert bool(followed) == (id(call) in waiting), f"call {call.seed} is followed by {call.followers}"


def _kept(model: Model, step_id: str, ids: list[int]) -> None:
    before = model.kept.get(step_id, [])
    assert ids[: len(before)] == before, f"lost: step {step_id} had the ids {before}, and has {ids}"
    model.kept[step_id] = list(ids)


def _answered(world: World, model: Model) -> None:
    """Every call gets one answer: a whole reply, or an error that what happened explains."""
    for follower in model.followers:
        if follower.waits or follower.ended is not None:
            continue
        follower.ended = model.now
        assert follower.task is not None
        if follower.task.cancelled():
            continue
        follower.task.result()
        if follower.complete:
            _whole(world, model, follower)
        elif follower.broken:
            assert model.may_break(follower), f"answer: {follower} lost its connection"
        else:
            allowed = model.errors(follower)
            assert follower.code in allowed, f"answer: {follower} is answered {follower.code}, not one of {allowed}"


def _whole(world: World, model: Model, follower: Follower) -> None:
    assert follower.status == 200, f"answer: {follower}"
    assert follower.step_id is not None, f"answer: {follower} names no step"
    if follower.expected_step is not None:
        assert follower.step_id == follower.expected_step, (
            f"retry: {follower} is no part of {follower.expected_step}"
        )
    session = world.session(follower.call.session)
    if session is None:
        return  # closed; it is read at the end
    node = session.trajectory.get(follower.step_id)
    assert node is not None, f"commit: {follower} is answered, and its step is not in the trajectory"
    ids = node.record.output_ids.tolist()
    _kept(model, follower.step_id, ids)
    check_reply(world.policy, follower.call, ids, committed=True)
    text = world.policy.text(ids)
    assert follower.text == text, f"answer: {follower} got {follower.text!r}, and {text!r} was sampled"


async def _pause_state(world: World, model: Model) -> None:
    """What the trainer is told is what is."""
    response = await world.running.control.get("/v1/rollout/pause_state")
    assert response.status_code == 200, response.text
    state = response.json()
    calls = [world.active._calls[rid].scopes for rid in world.active]
    pauses = {
        one["pause_id"]: (one["scope"], one["mode"], one["active"], one["suspended"]) for one in state["pauses"]
    }
    wanted = {
        pause.pause_id: (
            scope,
            pause.mode,
            sum(scope in scopes for scopes in calls),
            sum(scope in scopes for scopes in world.waiting),
        )
        for scope, pause in model.pauses.items()
    }
    assert pauses == wanted, f"pause_state: {pauses}, not {wanted}"
    running = [run for run in world.runs() if not run.detached]
    told = (state["paused"], state["suspended"], state["active"])
    right = (bool(model.pauses), len(running) - len(calls), len(calls))
    assert told == right, f"pause_state: paused, suspended, active are {told}, not {right}"


def nothing_left(world: World) -> None:
    """The example is over: no call, no waiter, no step, no pause."""
    runs = [f"{run.step_id} {'detached' if run.detached else 'running'}" for run in world.runs()]
    assert not runs, f"leak: steps {runs}"
    assert not len(world.active), f"leak: calls {list(world.active)} in flight"
    assert not world.active._asking, "leak: aborts are still asked for"
    assert world.gate.suspended == 0, f"leak: {world.gate.suspended} calls at the gate"
    assert world.gate.open, f"leak: pauses {world.gate.pauses}"
