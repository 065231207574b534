"""SmolLM2 and other plain ChatML models: one stop token, no tool calls, no reasoning."""

from __future__ import annotations

from adapters.models.family import ModelFamily

SMOLLM2 = ModelFamily(
    name="smollm2",
    matches=lambda template: "<|im_start|>" in template and "<tool_call>" not in template,
)
