"""How the sidecar treats requests and steps: the settings that admission, sessions and segments read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sidecar.tito.fingerprint import LENIENT, MatchRules
from sidecar.tito.modes import DEFAULT_MODES, BuildModes


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
    drop_rejected: bool = False
    """A delivered reply that the agent dropped does not train."""
    overflow_status: int = 400
    retry_window: float = 60.0
    max_roots: int = 1024
