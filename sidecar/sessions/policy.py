"""How the sidecar treats requests and steps: the settings that admission, sessions and segments read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from adapters.engines.routed_experts import ExpertShape
from sidecar.tito.fingerprint import LENIENT, MatchRules
from sidecar.tito.modes import DEFAULT_MODES, BuildModes
from sidecar.tito.segments import DEFAULT_RULES, TrainingRules


@dataclass(frozen=True, slots=True)
class Policy:
    """Seconds for times, tokens for lengths."""

    modes: BuildModes = DEFAULT_MODES
    rules: MatchRules = LENIENT
    """How requests are matched to earlier steps."""
    context_window: int | None = None
    """None: the engine's own."""
    max_output_tokens: int | None = None
    sampling_pin: Mapping[str, Any] = field(default_factory=dict)
    train_off_policy_sampling: bool = False
    training: TrainingRules = DEFAULT_RULES
    """What of a session trains; each session keeps the rules of its finalization."""
    partial_rollout: bool = True
    """A preempted step goes on from its ids on whatever weights; else a session has steps of one version alone."""
    experts: ExpertShape | None = None
    """With routing replay: the shape of the rows that the engine is asked for."""
    overflow_status: int = 400
    retry_window: float = 60.0
    max_roots: int = 1024
    max_session_bytes: int | None = None
    """What one session may store."""
    max_total_bytes: int | None = None
    """What all sessions of the process may hold in memory."""
