"""MiniMax M2: tagged calls in blocks of its own; one stop token, the tokenizer's."""

from __future__ import annotations

from adapters.models.family import ModelFamily
from adapters.models.formats.tagged import MINIMAX_M2

MINIMAX_M2_FAMILY = ModelFamily(
    name="minimax_m2",
    matches=lambda template: "minimax:tool_call" in template,
    tools=MINIMAX_M2,
)
