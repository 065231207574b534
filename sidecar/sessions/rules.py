"""The training rules that a finalization records, so that a session reads the same ever after. Pure."""

from __future__ import annotations

from typing import Any

from sidecar.store.protocol import SessionRow
from sidecar.tito.segments import TrainingRules
from sidecar.tito.version_rules import VersionRules


def recorded_rules(rules: TrainingRules) -> dict[str, Any]:
    """What a finalization records of the rules in force; `training_rules` reads it."""
    return {
        "drop_rejected": rules.drop_rejected,
        "mask_nonlast_version_tokens": rules.versions.mask_nonlast,
        "max_version_span": rules.versions.max_span,
    }


def training_rules(row: SessionRow) -> TrainingRules:
    """The rules that were in force when the session was finalized."""
    recorded = row.finalization or {}
    return TrainingRules(
        drop_rejected=bool(recorded.get("drop_rejected")),
        versions=VersionRules(
            mask_nonlast=bool(recorded.get("mask_nonlast_version_tokens")),
            max_span=recorded.get("max_version_span"),
        ),
    )
