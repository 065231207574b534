"""Until nothing moves any more: everything that can go on without a further action has gone on.

A call rests at the gate, in the engine (which samples no further, or stands still), or as a detached step; all
others are on their way. Back-offs and repeats are skipped, not waited for.
"""

import asyncio
import time

from sidecar.sessions.step_run import StepRun
from tests.fake_sglang.job import Job
from tests.fake_sglang.state import EngineState, Entry
from tests.state_machine.model import Model
from tests.state_machine.world import World

PATIENCE = 15.0
"""Real seconds after which what moves is taken for stuck; generous, the machine may be busy."""
_QUIET = 3


async def settle(world: World, model: Model) -> None:
    """Return when nothing moves. Raises `AssertionError` that says what never came to rest."""
    quiet, looks, deadline = 0, 0, time.monotonic() + PATIENCE
    while quiet < _QUIET:
        for _ in range(8):
            await asyncio.sleep(0)
        moving = _moving(world, model)
        quiet = 0 if moving else quiet + 1
        if not moving:
            continue
        if time.monotonic() > deadline:
            raise AssertionError(f"never comes to rest: {moving}")
        looks += 1
        if looks % 4 == 0:
            world.loop.skip(0.5)
        await asyncio.sleep(0.001)


def _moving(world: World, model: Model) -> str | None:
    """What is on its way, or None."""
    for command in model.commands:
        if not command.task.done() and not command.may_wait(world):
            return f"{command.name} is not answered"
    waiting = [follower for follower in model.followers if follower.waits]
    runs = list(world.runs())
    readers = sum(len(run._readers) for run in runs)
    if readers != len(waiting):
        return f"{len(waiting)} agents wait ({waiting}) and {readers} replies are followed"
    detached = [
        run for run in runs if run.detached and run._resumed._waiters
    ]  # it waits for a retry, and is stored
    if len(runs) != len(detached) + len(world.waiting) + len(world.active):
        states = [(run.step_id, "detached" if run.detached else "running") for run in runs]
        return f"{states}: {len(world.waiting)} at the gate, {len(world.active)} in the engine"
    return _moving_in_engine(world, runs) or _writing(world)


def _writing(world: World) -> str | None:
    writer = world.running.sidecar._store._writer  # type: ignore[attr-defined]
    if world.running.sidecar.pauses._background:
        return "the pauses have work under way"
    return "the store writes" if writer._queue or writer._awaited else None


def _moving_in_engine(world: World, runs: list[StepRun]) -> str | None:
    state = world.engine.state
    known = {request.rid: request for request in world.engine.requests if not request.done}
    for rid in world.active:
        if rid not in known:
            return f"call {rid} of the sidecar is not known to the engine"
    for rid in known:
        if rid not in set(world.active):
            return f"call {rid} of the engine is not known to the sidecar"
        entry = state.entries.get(rid)
        if entry is None or not _rests(entry, state):
            return f"call {rid} goes on in the engine"
        if entry.job is not None and not _read(world, entry.job, runs):
            return f"what the engine sampled for {rid} is not read"
    return None


def _rests(entry: Entry, state: EngineState) -> bool:
    """The engine does nothing for the request."""
    job = entry.job
    if job is None:
        return state.paused is not None
    if job.ended.is_set() or not job._marks.empty() or job._queue_aborted:
        return False
    if state.frozen:
        return True
    if job._to_finish:
        return False
    reply = job.plan.reply
    if job.phase == "waiting" and reply.queue is not None and not reply.queue.is_set():
        return True
    return reply.meter is not None and len(job.ids) >= reply.meter.limit


def _read(world: World, job: Job, runs: list[StepRun]) -> bool:
    sent = world.policy.carried(job.record) + job.ids[: job._sent]
    seed = world.policy.seed_of(job.record)
    return any(run.generation.output_ids == sent for run in runs if run.draft.sampling["sampling_seed"] == seed)
