"""gpt-oss: a final message stops at `<|return|>`, a call at `<|call|>`; its replies are read as a whole.

Once a final message is history its template prints `<|end|>` in the place of `<|return|>`. It is no stop token: the
model samples it between its messages.
"""

from __future__ import annotations

from adapters.models.family import ModelFamily
from adapters.models.formats.gpt_oss import GPT_OSS
from adapters.models.formats.reasoning import GPT_OSS_ANALYSIS

GPT_OSS_FAMILY = ModelFamily(
    name="gpt_oss",
    matches=lambda template: "<|channel|>" in template and "<|message|>" in template,
    stop_tokens=("<|return|>", "<|call|>", "<|endoftext|>"),
    closers=("<|end|>",),
    tools=GPT_OSS,
    reasoning=GPT_OSS_ANALYSIS,
)
