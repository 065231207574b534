"""How prompts are built is recorded, and read back from steps that were stored before there was a choice."""

from __future__ import annotations

import pytest

from sidecar.tito.modes import BuildModes, recorded_modes


@pytest.mark.parametrize(
    ("modes", "thinking"),
    [
        (BuildModes(), "keep"),
        (BuildModes(history_thinking="template"), "template"),
        (BuildModes("snapshot", "template"), "template"),
        (BuildModes("snapshot", "keep"), "template"),
    ],
)
def test_what_is_recorded_is_what_was_in_force(modes: BuildModes, thinking: str) -> None:
    """A snapshot has no earlier tokens in which reasoning could be kept."""
    recorded = modes.recorded()
    assert recorded == {"token_build_mode": modes.token_build_mode, "history_thinking": thinking}
    assert modes.template_decides == (thinking == "template")
    assert recorded_modes({**recorded, "turn_id": "t"}) == recorded


def test_a_step_that_records_no_modes_was_built_with_the_defaults() -> None:
    assert recorded_modes({"turn_id": "t"}) == {"token_build_mode": "tito", "history_thinking": "keep"}
    assert recorded_modes({"history_thinking": "template"})["history_thinking"] == "template"
