"""Random forests of steps, as a session could have made them, and checks that hold for all of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from sidecar.tito.records import VersionSpan
from sidecar.tito.trajectory import Trajectory
from tests.tito.builders import step

BOUNDARIES = ("tools_changed", "stop_trimmed", "template_changed", "tokenizer_changed", "unstable_template")
SYSTEMS = (b"main agent......", b"sub agent.......", b"")


@st.composite
def trajectories(draw: st.DrawFn, max_steps: int = 12) -> Trajectory:
    """Every id in the forest is different, so that a token tells its step. Aborted steps have no children."""
    trajectory = Trajectory()
    parents: list[str] = []
    next_id = 1
    for number in range(draw(st.integers(1, max_steps))):
        parent = draw(st.sampled_from([None, *parents])) if parents else None
        boundary = parent is not None and draw(st.integers(0, 4)) == 0
        reason = "root" if parent is None else draw(st.sampled_from(BOUNDARIES)) if boundary else None
        aborted = draw(st.integers(0, 5)) == 0
        context, output = draw(st.integers(0, 3)), draw(st.integers(0 if aborted else 1, 4))
        cut = draw(st.integers(0, output))
        spans = (VersionSpan(0, cut, "v1"), VersionSpan(cut, output, "v2"))
        changes: dict[str, Any] = {
            "sequence": number,
            "segment_reason": reason,
            "context_ids": range(next_id, next_id + context),
            "output_ids": range(next_id + context, next_id + context + output),
            "version_spans": tuple(span for span in spans if span.start < span.end),
            "system_hash": draw(st.sampled_from(SYSTEMS)),
            "body_hash": draw(st.sampled_from([b"one", b"two", f"body {number}".encode()])),
            "retry_count": draw(st.sampled_from([0, 0, 1])),
            "state": "aborted" if aborted else "committed",
            "finish_reason": "aborted" if aborted else "stop",
            "delivered": not aborted and draw(st.integers(0, 3)) > 0,
            "superseded_by": draw(st.sampled_from([None, None, None, "another"])),
            "untrainable": draw(st.sampled_from([None, None, None, "off_policy_sampling"])),
        }
        next_id += context + output
        trajectory.add(step(f"s{number}", parent, **changes))
        if not aborted:
            parents.append(f"s{number}")
    return trajectory
