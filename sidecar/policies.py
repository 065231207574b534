"""From settings to the rules by which sessions are built. Pure."""

from __future__ import annotations

import re

from adapters.engines.routed_experts import ExpertShape
from sidecar.config import Settings
from sidecar.sessions.policy import Policy
from sidecar.tito.fingerprint import MatchRules
from sidecar.tito.modes import BuildModes
from sidecar.tito.segments import TrainingRules
from sidecar.tito.version_rules import VersionRules


def modes_of(settings: Settings) -> BuildModes:
    """How token sequences are built."""
    return BuildModes(settings.token_build_mode, settings.history_thinking)


def policy_of(settings: Settings, experts: ExpertShape | None) -> Policy:
    """What sessions and calls are held to. `experts` is None without routing replay."""
    return Policy(
        modes=modes_of(settings),
        rules=MatchRules(
            exact=settings.match == "exact", volatile=tuple(map(re.compile, settings.volatile_pattern))
        ),
        max_output_tokens=settings.max_output_tokens,
        sampling_pin=settings.sampling_pin,
        training=TrainingRules(
            drop_rejected=settings.drop_rejected,
            versions=VersionRules(settings.mask_nonlast_version_tokens, settings.max_version_span),
        ),
        partial_rollout=settings.partial_rollout,
        train_off_policy_sampling=settings.train_off_policy_sampling,
        experts=experts,
        overflow_status=settings.overflow_status,
        retry_window=settings.retry_window,
        max_roots=settings.max_session_roots,
        max_session_bytes=settings.max_session_bytes,
        max_total_bytes=settings.max_total_bytes,
    )
