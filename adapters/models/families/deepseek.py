"""DeepSeek: sections of calls up to V3.1 and R1, tags (DSML) from V3.2 on. One stop token, the tokenizer's own."""

from __future__ import annotations

from adapters.models.family import ModelFamily
from adapters.models.formats.deepseek_v3 import DEEPSEEK_V3
from adapters.models.formats.tagged import DEEPSEEK_V4, DEEPSEEK_V32

DEEPSEEK_V3_FAMILY = ModelFamily(
    name="deepseek_v3",
    matches=lambda template: "<｜tool▁calls▁begin｜>" in template,
    tools=DEEPSEEK_V3,
)
DEEPSEEK_V32_FAMILY = ModelFamily(
    name="deepseek_v32",
    matches=lambda template: "DSML" in template and "function_calls" in template,
    tools=DEEPSEEK_V32,
)
DEEPSEEK_V4_FAMILY = ModelFamily(
    name="deepseek_v4",
    matches=lambda template: "DSML" in template,
    tools=DEEPSEEK_V4,
)
