"""What the steps of this process came to since it started, counted as the store takes them. One event loop."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sidecar.tito.records import StepRecord


@dataclass(slots=True)
class StepCounts:
    """Steps that are in the store for good; detached ones are counted when they end."""

    steps: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By state (`committed`, `aborted`) and finish reason."""
    segments: Counter[str] = field(default_factory=Counter)
    """By what began them (`StepRecord.segment_reason`)."""
    context_tokens: int = 0
    """Appended before generations: those of earlier steps are counted with these, or sampled."""
    output_tokens: int = 0
    interruptions: int = 0
    """Engine calls that a pause, a preemption or a lost connection ended before the model did."""

    def add(self, record: StepRecord) -> None:
        """A final step was stored."""
        self.steps[record.state, record.finish_reason] += 1
        if record.segment_reason is not None:
            self.segments[record.segment_reason] += 1
        self.context_tokens += len(record.context_ids)
        self.output_tokens += len(record.output_ids)
