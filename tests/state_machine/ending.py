"""The end of an example: every pause is lifted, everything may finish, and what the trainer then reads is compared
with what the engine sampled.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sidecar.tito.records import StepRecord
from tests.fake_sglang.plan import pseudo_logprob
from tests.invariants.aligned import sampled_positions
from tests.state_machine.calls import Call
from tests.state_machine.checks import look, nothing_left
from tests.state_machine.model import SESSIONS, Model
from tests.state_machine.replies import UNKNOWN, check_reply, may_be_unknown, version_of
from tests.state_machine.settling import settle
from tests.state_machine.world import WINDOW, World


async def finish(world: World, model: Model) -> None:
    """Let everything end."""
    if model.down:
        await world.engine.up()
        model.outages[-1] = (model.outages[-1][0], model.now)
    await world.engine.state.resume()
    status, reply = await world.post("/v1/rollout/resume")
    assert (status, reply["paused"]) == (200, False), f"resume: {reply}"
    for pause in list(model.pauses.values()):
        model.lift(pause)
    for call in model.calls:
        world.policy.allow(call.seed, 1000)
    await settle(world, model)
    await look(world, model)
    left = [follower for follower in model.followers if follower.waits]
    assert not left, f"answer: {left} have none"
    for _ in range(3):
        world.loop.skip(WINDOW)
        await settle(world, model)
    await look(world, model)
    nothing_left(world)
    assert not model.commands, f"{[command.name for command in model.commands]} are not answered"
    assert await world.running.sidecar._store.list_pauses() == [], "leak: pauses in the store"
    await world.engine.wait_idle()


async def read_back(world: World, model: Model) -> None:
    """Finalize what is open, and check each session's steps and segments."""
    for session_id in SESSIONS:
        if session_id in model.discarded:
            continue
        status, reply = await world.post("/session/finalize", session_id=session_id)
        stored = await world.running.sidecar._store.load_session(session_id)
        assert stored is not None
        replies = {record.step_id: _check_record(world, model, record) for record in stored.steps}
        _check_followers(model, session_id, stored.steps, replies)
        if status != 200:
            assert reply["error"]["code"] == "no_steps", f"finalize: {reply}"
            continue
        status, read = await world.post("/trajectory/read", session_id=session_id, include_drained=True)
        assert status == 200, read
        steps = (await world.running.control.get(f"/session/{session_id}")).json()["steps"]
        for segment in read["data"]:
            _check_segment(world, segment, {step["step_id"]: step for step in steps}, stored.steps)


def _call_of(model: Model, record: StepRecord) -> Call:
    return next(call for call in model.calls if call.seed == record.sampling["sampling_seed"])


def _check_record(world: World, model: Model, record: StepRecord) -> str:
    """One stored step, against what the engine sampled; the text of its reply."""
    assert record.state in ("committed", "aborted"), f"leak: step {record.step_id} stays {record.state}"
    call, ids = _call_of(model, record), record.output_ids.tolist()
    kept = model.kept.get(record.step_id, [])
    assert ids[: len(kept)] == kept, f"lost: step {record.step_id} had {kept}, and the store has {ids}"
    parts = check_reply(world.policy, call, ids, committed=record.state == "committed")
    told = [span.version for span in record.version_spans for _ in range(span.start, span.end)]
    assert len(told) == len(record.output_logprobs) == len(ids), f"aligned: {record}"
    for part in parts:
        where = f"of {part.request}, from {part.start} on in step {record.step_id}"
        for at in range(part.start, part.end):
            position = len(world.policy.prompts[call.seed]) + at
            logprob, version = pseudo_logprob(position, ids[at]), version_of(part, at)
            got = float(record.output_logprobs[at])
            assert got == logprob, f"aligned: id {ids[at]} at {position} has logprob {got}, not {logprob}"
            if told[at] != UNKNOWN:
                assert told[at] == version, f"version: {told[at]} is not {version}, {where}"
            else:
                known = len(model.versions) == 1 or not may_be_unknown(part, world.quirks.version_spans)
                assert not known, f"version: it is unknown, not {version}, {where}"
    if model.one_version and record.state == "committed":
        assert len(set(told)) <= 1, f"version: step {record.step_id} mixes {set(told)}"
    return world.policy.text(ids)


def _check_followers(
    model: Model, session_id: str, records: Sequence[StepRecord], replies: Mapping[str, str]
) -> None:
    """Who was answered has a committed step; what others saw of a reply is how the step's text begins."""
    states = {record.step_id: record.state for record in records}
    for call in model.calls:
        if call.session != session_id:
            continue
        steps = [record for record in records if _call_of(model, record) is call]
        assert len(steps) <= len(call.followers), f"call {call.seed} was made {call.followers}, and has {steps}"
        for follower in call.followers:
            step_id = follower.step_id or ""
            if follower.complete:
                assert states.get(step_id) == "committed", f"commit: {follower}: its step is {states.get(step_id)}"
                assert follower.text == replies[step_id], (
                    f"answer: {follower} got {follower.text!r} of {replies[step_id]!r}"
                )
            elif step_id in replies:
                assert replies[step_id].startswith(follower.text), f"binding: {follower} saw {follower.text!r}"


def _check_segment(
    world: World, segment: dict[str, Any], steps: dict[str, Any], records: Sequence[StepRecord]
) -> None:
    """A segment holds its steps' ids with the same logprobs and versions, behind just the prompts they had."""
    names = ("tokens", "full_loss_mask", "full_logprobs", "full_versions")
    lengths = {len(segment[name]) for name in names}
    assert len(lengths) == 1, f"aligned: arrays of {lengths}"
    places: dict[str, list[int]] = {}
    for position, step_id in sampled_positions(segment, steps).items():
        places.setdefault(step_id, []).append(position)
    for record in records:
        at = places.get(record.step_id)
        if not at:
            continue
        seed, first, end = record.sampling["sampling_seed"], at[0], at[-1] + 1
        assert segment["tokens"][:first] == world.policy.prompts[seed], f"exact: step {record.step_id}'s prompt"
        versions = [span.version for span in record.version_spans for _ in range(span.start, span.end)]
        stored = (record.output_ids.tolist(), record.output_logprobs.tolist(), versions)
        read = tuple(segment[name][first:end] for name in ("tokens", "full_logprobs", "full_versions"))
        assert read == stored, f"aligned: the trainer reads {read}, and {stored} was stored"
