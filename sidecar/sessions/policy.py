"""How the sidecar treats requests and steps: the settings that admission, sessions and segments read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Policy:
    """Seconds for times, tokens for lengths."""

    match: Literal["lenient", "exact"] = "lenient"
    context_window: int | None = None
    """None: the engine's own."""
    max_output_tokens: int | None = None
    sampling_pin: Mapping[str, Any] = field(default_factory=dict)
    train_off_policy_sampling: bool = False
    overflow_status: int = 400
    retry_window: float = 60.0
    max_roots: int = 1024
