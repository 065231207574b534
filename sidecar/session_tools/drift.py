"""What decoding and encoding again would have changed in one stored session. Pure, but for reading tokenizers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from sidecar.session_tools.stored import trajectory_of
from sidecar.session_tools.tokenizers import NamedCodec
from sidecar.sessions.rules import training_rules
from sidecar.store.protocol import StoredSession, StoreError
from sidecar.tito.codec import Codec
from sidecar.tito.drift import DriftTotals, ReplyDrift, SampledReply, Stretch, find_drift, total_drift
from sidecar.tito.records import StepRecord
from sidecar.tito.segments import NoSteps, TrainingRules, plan_segments
from sidecar.tito.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class TurnDrift:
    """One reply: what `tokenizer` makes of it, and the step with what it says of its own."""

    record: StepRecord
    tokenizer: NamedCodec
    reply: ReplyDrift


@dataclass(frozen=True, slots=True)
class SessionDrift:
    """`turns[n]` is the session's reply n + 1 in order of commit; `without_reply` counts steps that were aborted
    or still wait for a retry, whose tokens no agent got."""

    session_id: str
    state: str
    turns: tuple[TurnDrift, ...]
    without_reply: int

    @property
    def totals(self) -> DriftTotals:
        """Sums over all turns."""
        return total_drift(turn.reply for turn in self.turns)

    @property
    def tokenizers(self) -> list[NamedCodec]:
        """Those that the turns were read with, in order of use; more than one after a change in mid-session."""
        return list({turn.tokenizer.name: turn.tokenizer for turn in self.turns}.values())

    @property
    def warnings(self) -> list[str]:
        """Turns that were not read with the tokenizer that is known to have sampled them."""
        unsure = Counter(
            (turn.tokenizer.name, turn.tokenizer.codec.sha256, turn.record.tokenizer, turn.record.tokenizer_sha256)
            for turn in self.turns
            if turn.record.tokenizer_sha256 != turn.tokenizer.codec.sha256
        )
        return [_warning(f"{count} of {len(self.turns)} replies", *one) for one, count in unsure.items()]


def _warning(which: str, name: str, sha256: str, own: str | None, own_sha256: str | None) -> str:
    if own_sha256 is None:
        return f"{which} do not say which tokenizer sampled them; taken for those of {name}"
    return (
        f"{which} were sampled with another tokenizer than {name} (sha256 {sha256[:16]}): {own} (sha256 "
        f"{own_sha256[:16]}); what is said of them holds only where both give the same ids"
    )


def session_drift(stored: StoredSession, tokenizer_of: Callable[[StepRecord], NamedCodec]) -> SessionDrift:
    """Compare every reply of the session. `tokenizer_of` may raise, see `Tokenizers`.

    Raises `StoreError` if the session was discarded."""
    row = stored.row
    if row.state == "discarded":
        raise StoreError(f"session {row.session_id!r} was discarded: its tokens are no longer stored")
    trajectory = trajectory_of(stored)
    finalization = row.finalization or {}
    trained = _trained(trajectory, finalization.get("anchor_step_id"), training_rules(row))
    turns = []
    for record in (node.record for node in trajectory):
        if record.state == "committed":
            tokenizer = tokenizer_of(record)
            sampled = SampledReply(record.step_id, record.context_ids, record.output_ids, record.step_id in trained)
            turns.append(TurnDrift(record, tokenizer, find_drift(tokenizer.codec, sampled)))
    return SessionDrift(row.session_id, row.state, tuple(turns), len(stored.steps) - len(turns))


def _trained(trajectory: Trajectory, anchor_step_id: str | None, rules: TrainingRules) -> set[str]:
    """Steps whose tokens train, or would if the session were finalized now."""
    try:
        plans = plan_segments(trajectory, anchor_step_id, rules)
        return {step_id for plan in plans for step_id in plan.trained}
    except NoSteps:
        return set()


def as_json(drift: SessionDrift) -> dict[str, Any]:
    """The report as one JSON object; every id with its text."""
    return {
        "session_id": drift.session_id,
        "state": drift.state,
        "tokenizers": [{"name": one.name, "sha256": one.codec.sha256} for one in drift.tokenizers],
        "warnings": drift.warnings,
        "totals": asdict(drift.totals),
        "steps_without_reply": drift.without_reply,
        "steps": [_turn(number, turn) for number, turn in enumerate(drift.turns, 1)],
    }


def _turn(number: int, turn: TurnDrift) -> dict[str, Any]:
    return {
        "step_id": turn.reply.step_id,
        "turn": number,
        "tokenizer": turn.tokenizer.name,
        "recorded_tokenizer": turn.record.tokenizer,
        "recorded_tokenizer_sha256": turn.record.tokenizer_sha256,
        "trained": turn.reply.trained,
        "tokens_sampled": turn.reply.sampled,
        "tokens_changed": turn.reply.changed,
        "logprobs_misaligned": turn.reply.misaligned,
        "stretches": [_stretch(stretch, turn.tokenizer.codec) for stretch in turn.reply.stretches],
    }


def _stretch(stretch: Stretch, codec: Codec) -> dict[str, Any]:
    return {
        "position": stretch.position,
        "text": stretch.text,
        "sampled": [{"id": index, "text": codec.decode([index])} for index in stretch.sampled],
        "encoded": [{"id": index, "text": codec.decode([index])} for index in stretch.encoded],
    }
