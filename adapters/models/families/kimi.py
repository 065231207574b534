"""Kimi K2: the tokenizer's `eos_token` is the base model's; replies end with `<|im_end|>`."""

from __future__ import annotations

from adapters.models.family import ModelFamily
from adapters.models.formats.kimi_k2 import KIMI_K2

KIMI_K2_FAMILY = ModelFamily(
    name="kimi_k2",
    matches=lambda template: "<|tool_calls_section_begin|>" in template,
    stop_tokens=("<|im_end|>",),
    tools=KIMI_K2,
)
