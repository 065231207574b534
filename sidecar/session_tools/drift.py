"""What decoding and encoding again would have changed in one stored session. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sidecar.session_tools.stored import trajectory_of
from sidecar.sessions.export import training_rules
from sidecar.store.protocol import StoredSession, StoreError
from sidecar.tito.codec import Codec
from sidecar.tito.drift import DriftTotals, ReplyDrift, SampledReply, Stretch, find_drift, total_drift
from sidecar.tito.records import StepRecord
from sidecar.tito.segments import NoSteps, TrainingRules, plan_segments
from sidecar.tito.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class SessionDrift:
    """`turns[n]` is the session's reply n + 1 in order of commit; `without_reply` counts steps that were aborted
    or still wait for a retry, whose tokens no agent got."""

    session_id: str
    state: str
    tokenizer: str
    turns: tuple[ReplyDrift, ...]
    without_reply: int

    @property
    def totals(self) -> DriftTotals:
        """Sums over all turns."""
        return total_drift(self.turns)


def session_drift(stored: StoredSession, codec: Codec, tokenizer: str) -> SessionDrift:
    """Compare every reply of the session. `tokenizer` is the name that the report shows.

    Raises `StoreError` if the session was discarded, or sampled with another tokenizer than `codec`."""
    row = stored.row
    if row.state == "discarded":
        raise StoreError(f"session {row.session_id!r} was discarded: its tokens are no longer stored")
    for record in stored.steps:
        _check_tokenizer(record, codec, tokenizer)
    trajectory = trajectory_of(stored)
    finalization = row.finalization or {}
    trained = _trained(trajectory, finalization.get("anchor_step_id"), training_rules(row))
    turns = tuple(
        find_drift(
            codec,
            SampledReply(record.step_id, record.context_ids, record.output_ids, record.step_id in trained),
        )
        for record in (node.record for node in trajectory)
        if record.state == "committed"
    )
    return SessionDrift(row.session_id, row.state, tokenizer, turns, len(stored.steps) - len(turns))


def _trained(trajectory: Trajectory, anchor_step_id: str | None, rules: TrainingRules) -> set[str]:
    """Steps whose tokens train, or would if the session were finalized now."""
    try:
        plans = plan_segments(trajectory, anchor_step_id, rules)
        return {step_id for plan in plans for step_id in plan.trained}
    except NoSteps:
        return set()


def _check_tokenizer(record: StepRecord, codec: Codec, tokenizer: str) -> None:
    """Another tokenizer than the session's would show nothing but drift; two signs of it are certain enough."""
    largest = max((int(ids.max()) for ids in (record.context_ids, record.output_ids) if len(ids)), default=0)
    if largest >= codec.vocab_size:
        sign = f"id {largest} is beyond its vocabulary of {codec.vocab_size}"
    elif record.stop_id is not None and record.stop_id not in codec.control:
        sign = f"the stop id {record.stop_id} is {codec.decode([record.stop_id])!r} in it, no control token"
    else:
        return
    raise StoreError(
        f"--tokenizer is {tokenizer!r}, but step {record.step_id} was sampled with another one: {sign}; "
        "name the tokenizer that the sidecar served"
    )


def as_json(drift: SessionDrift, codec: Codec) -> dict[str, Any]:
    """The report as one JSON object; every id with its text."""
    return {
        "session_id": drift.session_id,
        "state": drift.state,
        "tokenizer": drift.tokenizer,
        "totals": asdict(drift.totals),
        "steps_without_reply": drift.without_reply,
        "steps": [
            {
                "step_id": turn.step_id,
                "turn": number,
                "trained": turn.trained,
                "tokens_sampled": turn.sampled,
                "tokens_changed": turn.changed,
                "logprobs_misaligned": turn.misaligned,
                "stretches": [_stretch(stretch, codec) for stretch in turn.stretches],
            }
            for number, turn in enumerate(drift.turns, 1)
        ],
    }


def _stretch(stretch: Stretch, codec: Codec) -> dict[str, Any]:
    return {
        "position": stretch.position,
        "text": stretch.text,
        "sampled": [{"id": index, "text": codec.decode([index])} for index in stretch.sampled],
        "encoded": [{"id": index, "text": codec.decode([index])} for index in stretch.encoded],
    }
