"""Mistral: one reader for the three spellings of its calls; one stop token, the tokenizer's."""

from __future__ import annotations

from adapters.models.family import ModelFamily
from adapters.models.formats.mistral import MISTRAL

MISTRAL_FAMILY = ModelFamily(
    name="mistral",
    matches=lambda template: "[TOOL_CALLS]" in template,
    tools=MISTRAL,
)
