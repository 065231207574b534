"""Qwen: ChatML. Qwen2.5 and Qwen3 write Hermes calls, Qwen3-Coder, Qwen3.5 and Nemotron 3 tagged ones.

The template prints a newline after `<|im_end|>` that is never sampled; the delta brings it. The base model's
end of text is a second stop token in the published generation config.
"""

from __future__ import annotations

from adapters.models.family import ModelFamily
from adapters.models.formats.hermes import HERMES
from adapters.models.formats.tagged import QWEN3_CODER


def _tagged(template: str) -> bool:
    return "<tool_call>" in template and "<function=" in template and "<parameter=" in template


QWEN3 = ModelFamily(
    name="qwen3",
    matches=lambda template: "<|im_start|>" in template and "<tool_call>" in template,
    stop_tokens=("<|endoftext|>",),
    tools=HERMES,
)
QWEN3_CODER_FAMILY = ModelFamily(
    name="qwen3_coder",
    matches=_tagged,
    stop_tokens=("<|endoftext|>", "<|im_end|>"),
    tools=QWEN3_CODER,
)
