"""Qwen3 (and Qwen2.5, which differs by having no reasoning): ChatML, Hermes calls, `<think>` reasoning.

The template prints a newline after `<|im_end|>` that is never sampled; the delta brings it. The base model's
end of text is a second stop token in the published generation config.
"""

from __future__ import annotations

from adapters.models.family import ModelFamily
from adapters.models.formats import HERMES, THINK

QWEN3 = ModelFamily(
    name="qwen3",
    matches=lambda template: "<|im_start|>" in template and "<tool_call>" in template,
    stop_tokens=("<|endoftext|>",),
    tools=HERMES,
    reasoning=THINK,
)
