"""I3 and I4 over the segments of one played session, against what the engine recorded. Pure functions."""

from collections import Counter
from typing import Any

from tests.fake_sglang import RecordedRequest
from tests.invariants.checks import View, committed
from tests.invariants.journal import Journal

Segment = dict[str, Any]
Sent = tuple[float | None, str]
"""Logprob and weight version with which the engine sent a token."""


def check_aligned(journal: Journal, view: View, segments: list[Segment]) -> None:
    """I3: arrays of one length; context is blank; sampled tokens carry what the engine sent, trained or not."""
    steps = {step["step_id"]: step for step in view["steps"]}
    requests = journal.world.engine.recorder.session(journal.session_id)
    for segment in segments:
        arrays = [segment[name] for name in ("tokens", "full_loss_mask", "full_logprobs", "full_versions")]
        lengths = {len(array) for array in arrays}
        assert len(lengths) == 1, f"I3: arrays of {[len(array) for array in arrays]} entries"
        sampled = sampled_positions(segment, steps)
        sent = _sent(segment["tokens"], requests)
        for position, (token, mask, logprob, version) in enumerate(zip(*arrays, strict=True)):
            where = f"token {token} at {position} of segment {segment['uid']}"
            assert mask in (0, 1), f"I3: {where} has mask {mask!r}"
            if position not in sampled:
                assert (mask, logprob, version) == (0, 0.0, "-1"), (
                    f"I3: context {where}: {mask} {logprob} {version}"
                )
                continue
            told = sent.get(position, set())
            assert (logprob, version) in told, f"I3: {where} carries {logprob}, {version}; the engine sent {told}"
        info = segment["extra_info"]
        assert info["output_token_count"] == segment["full_loss_mask"].count(1), "I3: output_token_count is wrong"
        for span in info["version_spans"]:
            named = set(segment["full_versions"][span["start"] : span["end"]])
            assert named == {span["version"]}, f"I3: span {span} holds versions {named}"


def sampled_positions(segment: Segment, steps: dict[str, Any]) -> dict[int, str]:
    """Position in the segment -> the step that sampled the token there, from the steps' counts."""
    found: dict[int, str] = {}
    position = 0
    for step_id in segment["extra_info"]["step_ids"]:
        position += steps[step_id]["context_tokens"]
        for _ in range(steps[step_id]["output_tokens"]):
            found[position] = step_id
            position += 1
    assert position == len(segment["tokens"]), (
        f"I3: the steps have {position} tokens, the segment has another number"
    )
    return found


def _sent(tokens: list[int], requests: list[RecordedRequest]) -> dict[int, set[Sent]]:
    """What the engine sent for each position, over all requests whose prompt is a beginning of `tokens`."""
    found: dict[int, set[Sent]] = {}
    for request in requests:
        start = len(request.input_ids)
        if tokens[:start] != request.input_ids:
            continue
        versions = [span["version"] for span in request.weight_versions for _ in range(span["start"], span["end"])]
        for offset, token in enumerate(request.output_ids):
            if start + offset >= len(tokens) or tokens[start + offset] != token:
                break
            found.setdefault(start + offset, set()).add((request.output_logprobs[offset], versions[offset]))
    return found


def check_tokens(journal: Journal, view: View, segments: list[Segment]) -> None:
    """I3: a segment is, id by id, what its steps' requests read and sampled."""
    told = journal.steps()
    for segment in segments:
        last = segment["extra_info"]["step_ids"][-1]
        if last in told and last in committed(view):
            assert segment["tokens"] == journal.tokens(last), f"I3: segment {segment['uid']} has other tokens"


def check_once(journal: Journal, view: View, segments: list[Segment]) -> None:
    """I4: every step trains in exactly one segment, whole, or is listed as untrainable with a right reason."""
    steps = {step["step_id"]: step for step in view["steps"]}
    trained: Counter[str] = Counter()
    listed: dict[str, str] = {}
    for segment in segments:
        listed |= {one["step_id"]: one["reason"] for one in segment["extra_info"]["untrainable"]}
        by_step: dict[str, set[int]] = {}
        for position, step_id in sampled_positions(segment, steps).items():
            by_step.setdefault(step_id, set()).add(segment["full_loss_mask"][position])
        for step_id, masks in by_step.items():
            assert len(masks) == 1, f"I4: step {step_id} trains in part"
            trained[step_id] += masks == {1}
    for step_id, step in steps.items():
        expected = _untrainable(journal, step)
        if expected:
            assert not trained[step_id], f"I4: step {step_id} trains, but it is {expected}"
            assert listed.get(step_id) in expected, (
                f"I4: {step_id} is listed as {listed.get(step_id)}, not {expected}"
            )
        else:
            assert step_id not in listed, f"I4: step {step_id} is listed as {listed[step_id]}"
            assert trained[step_id] == 1, f"I4: step {step_id} trains in {trained[step_id]} segments"


def _untrainable(journal: Journal, step: dict[str, Any]) -> set[str]:
    """The reasons that fit; none for a step that has to train."""
    if step["state"] == "aborted":
        return {"aborted", "undelivered"}
    assert step["state"] == "committed", f"I4: step {step['step_id']} is {step['state']} in a finalized session"
    told = [one for one in journal.exchanges if step["step_id"] in one.step_ids]
    if not any(one.answer is not None and one.answer.complete for one in told):
        return {"undelivered"}  # it ended just before the agent hung up
    return {"off_policy_sampling"} if told[0].body.get("frequency_penalty") else set()
