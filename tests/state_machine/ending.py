"""The end of an example: every pause is lifted, everything may finish, and what the trainer then reads is compared
with what the engine sampled.
"""

from typing import Any

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
    """Finalize what is open, and check each session's segments."""
    for session_id in SESSIONS:
        if session_id in model.discarded:
            continue
        status, reply = await world.post("/session/finalize", session_id=session_id)
        if status != 200:
            assert reply["error"]["code"] == "no_steps", f"finalize: {reply}"
            told = [one for one in model.followers if one.call.session == session_id and one.complete]
            assert not told, f"commit: {session_id} has no steps, and {told} were answered"
            continue
        status, read = await world.post("/trajectory/read", session_id=session_id, include_drained=True)
        assert status == 200, read
        viewed = await world.running.control.get(f"/session/{session_id}")
        _check_session(world, model, session_id, viewed.json()["steps"], read["data"])


def _check_session(
    world: World, model: Model, session_id: str, viewed: list[dict[str, Any]], segments: list[dict[str, Any]]
) -> None:
    steps = {step["step_id"]: step for step in viewed}
    seen: dict[str, str] = {}
    for segment in segments:
        arrays = [segment[name] for name in ("tokens", "full_loss_mask", "full_logprobs", "full_versions")]
        assert len({len(array) for array in arrays}) == 1, f"aligned: arrays of {[len(one) for one in arrays]}"
        places: dict[str, list[int]] = {}
        for position, step_id in sampled_positions(segment, steps).items():
            places.setdefault(step_id, []).append(position)
        for step_id, positions in places.items():
            seen[step_id] = _check_step(world, model, segment, steps[step_id], positions)
    for follower in model.followers:
        if follower.call.session != session_id or follower.step_id is None:
            continue
        if follower.complete:
            assert follower.step_id in seen, f"commit: {follower} was answered, and no segment has its step"
        text = seen.get(follower.step_id)
        assert text is None or text.startswith(follower.text), f"binding: {follower} saw {follower.text!r} of {text!r}"
    _check_counts(model, session_id, viewed)


def _check_step(
    world: World, model: Model, segment: dict[str, Any], step: dict[str, Any], positions: list[int]
) -> str:
    """One step's tokens; the text of its reply."""
    call = next(one for one in model.calls if one.seed == step["sampling"]["sampling_seed"])
    first, policy = positions[0], world.policy
    assert segment["tokens"][:first] == policy.prompts[call.seed], f"exact: step {step['step_id']} has another prompt"
    ids = [segment["tokens"][position] for position in positions]
    kept = model.kept.get(step["step_id"], [])
    assert ids[: len(kept)] == kept, f"lost: step {step['step_id']} had {kept}, and the trainer reads {ids}"
    parts = check_reply(policy, call, ids, committed=step["state"] == "committed")
    for part in parts:
        for at in range(part.start, part.end):
            position = first + at
            told = segment["full_logprobs"][position], segment["full_versions"][position]
            logprob, version = pseudo_logprob(position, ids[at]), version_of(part, at)
            assert told[0] == logprob, f"aligned: id {ids[at]} at {position} has logprob {told[0]}, not {logprob}"
            if told[1] == UNKNOWN:
                known = len(model.versions) == 1 or not may_be_unknown(part, world.quirks.version_spans)
                assert not known, f"version: of id {ids[at]} from {part.request} it is unknown, not {version}"
            else:
                assert told[1] == version, f"version: id {ids[at]} of {part.request} is of {told[1]}, not {version}"
    if model.one_version and step["state"] == "committed":
        named = {version_of(part, at) for part in parts for at in range(part.start, part.end)}
        assert len(named) <= 1, f"version: step {step['step_id']} mixes {named}"
    return policy.text(ids)


def _check_counts(model: Model, session_id: str, viewed: list[dict[str, Any]]) -> None:
    """No call has more steps than it was made."""
    for call in _calls_of(model, session_id):
        steps = [step for step in viewed if step["sampling"]["sampling_seed"] == call.seed]
        assert len(steps) <= len(call.followers), f"call {call.seed} was made {call.followers}, and has {steps}"


def _calls_of(model: Model, session_id: str) -> list[Call]:
    return [call for call in model.calls if call.session == session_id]
