"""Gemma 4: a turn with calls stops at the opener of the tool's response."""

from __future__ import annotations

from adapters.models.family import ModelFamily
from adapters.models.formats.gemma4 import GEMMA4

GEMMA4_FAMILY = ModelFamily(
    name="gemma4",
    matches=lambda template: "<|tool_call>" in template,
    stop_tokens=("<turn|>", "<|tool_response>"),
    tools=GEMMA4,
)
