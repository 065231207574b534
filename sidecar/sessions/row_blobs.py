"""Rows of routing replay as a final step's blob. Pure, but for a warning."""

from __future__ import annotations

import logging

from sidecar.generation.generation import Generation
from sidecar.tito.records import StepRecord
from sidecar.tito.routed_rows import blob_key

log = logging.getLogger(__name__)


def rows_blob(generation: Generation, record: StepRecord) -> dict[bytes, bytes]:
    """The rows that are stored with a final step; a step that lacks some is told of, with the reason."""
    if record.untrainable == "replay_rows" and record.state == "committed":
        log.warning(
            "no routing replay of a step: session_id=%s step_id=%s: %s",
            record.session_id,
            record.step_id,
            generation.rows_missing(),
        )
    if generation.rows is None or record.routed_rows is None:
        return {}
    return {blob_key(record.step_id): generation.rows.data(record.routed_rows)}
