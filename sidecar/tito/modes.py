"""How prompts are built: settings of the whole process that every step records. Immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

TokenBuildMode = Literal["tito", "snapshot"]
HistoryThinking = Literal["keep", "template"]


@dataclass(frozen=True, slots=True)
class BuildModes:
    """`tito` appends to what was sampled; `snapshot` renders every request in full, for templates without a delta.

    `keep` leaves sampled reasoning in the tokens of its segment for good. `template` starts a segment where the
    chat template would drop it, so that every prompt shows the reasoning that the template shows there."""

    token_build_mode: TokenBuildMode = "tito"
    history_thinking: HistoryThinking = "keep"

    @property
    def snapshot(self) -> bool:
        """Every step is a segment of its own."""
        return self.token_build_mode == "snapshot"

    @property
    def template_decides(self) -> bool:
        """Prompts show the reasoning that the template shows. A snapshot has no tokens to keep reasoning in."""
        return self.snapshot or self.history_thinking == "template"

    def recorded(self) -> dict[str, str]:
        """What a step records of the modes in force; `recorded_modes` reads it."""
        thinking: HistoryThinking = "template" if self.template_decides else "keep"
        return {"token_build_mode": self.token_build_mode, "history_thinking": thinking}


DEFAULT_MODES = BuildModes()


def recorded_modes(extra: Mapping[str, Any]) -> dict[str, Any]:
    """The modes in a step's `extra`; steps stored before there was a choice were built with the defaults."""
    return {name: extra.get(name, default) for name, default in DEFAULT_MODES.recorded().items()}
