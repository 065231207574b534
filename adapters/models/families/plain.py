"""Families that need no maker's file: Hermes calls in other templates, plain ChatML (SmolLM2), and all the rest."""

from __future__ import annotations

from adapters.models.family import ModelFamily
from adapters.models.formats.hermes import HERMES


def _hermes(template: str) -> bool:
    """MiniMax M3 and Hunyuan use the same marker inside others of their own."""
    return "<tool_call>" in template and "]<]minimax[>[" not in template and "<tool_calls>" not in template


HERMES_FAMILY = ModelFamily(
    name="hermes",
    matches=_hermes,
    tools=HERMES,
)
SMOLLM2 = ModelFamily(
    name="smollm2",
    matches=lambda template: "<|im_start|>" in template and "tools" not in template,
)
GENERIC = ModelFamily(name="generic", matches=lambda template: True)
"""Any template: replies are tokens and text as ever, but calls stay in the content."""
