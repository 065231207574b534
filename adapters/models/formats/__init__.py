"""All call and reasoning formats by name. Read-only data.

Names are those of SGLang 0.5.23's parsers where it has one; several of its names can mean one format of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from adapters.models.formats.base import ReasoningFormat, ToolFormat
from adapters.models.formats.deepseek_v3 import DEEPSEEK_V3
from adapters.models.formats.gemma4 import GEMMA4
from adapters.models.formats.glm import GLM
from adapters.models.formats.gpt_oss import GPT_OSS
from adapters.models.formats.hermes import HERMES, NEMOTRON_V2
from adapters.models.formats.kimi_k2 import KIMI_K2
from adapters.models.formats.llama import LLAMA3_JSON, PYTHONIC
from adapters.models.formats.mistral import MISTRAL
from adapters.models.formats.reasoning import (
    GEMMA4_THOUGHT,
    GPT_OSS_ANALYSIS,
    KIMI_THINK,
    MISTRAL_THINK,
    SEED_THINK,
    THINK,
)
from adapters.models.formats.tagged import DEEPSEEK_V4, DEEPSEEK_V32, DEEPSEEK_V41, MINIMAX_M2, QWEN3_CODER

TOOL_FORMATS: Mapping[str, ToolFormat] = MappingProxyType(
    {
        "hermes": HERMES,
        "qwen": HERMES,
        "qwen25": HERMES,
        "qwen3_coder": QWEN3_CODER,
        "nemotron_3": QWEN3_CODER,
        "nanbeige": QWEN3_CODER,
        "step3p5": QWEN3_CODER,
        "nemotron_v2": NEMOTRON_V2,
        "glm": GLM,
        "glm45": GLM,
        "glm47": GLM,
        "deepseekv3": DEEPSEEK_V3,
        "deepseekv31": DEEPSEEK_V3,
        "deepseekv32": DEEPSEEK_V32,
        "deepseekv4": DEEPSEEK_V4,
        "deepseekv41": DEEPSEEK_V41,
        "kimi_k2": KIMI_K2,
        "minimax-m2": MINIMAX_M2,
        "llama3": LLAMA3_JSON,
        "pythonic": PYTHONIC,
        "mistral": MISTRAL,
        "gpt-oss": GPT_OSS,
        "gemma4": GEMMA4,
    }
)

REASONING_FORMATS: Mapping[str, ReasoningFormat] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "think", "qwen3", "qwen3-thinking", "glm45", "kimi_k2", "deepseek-r1", "deepseek-v3", "deepseek-v4",
                "deepseek-v41", "minimax", "minimax-append-think", "nemotron_3", "step3", "step3p5", "nanbeige",
                "mimo",
            ),
            THINK,
        ),
        "seed_think": SEED_THINK,
        "kimi": KIMI_THINK,
        "mistral": MISTRAL_THINK,
        "gpt-oss": GPT_OSS_ANALYSIS,
        "gemma4": GEMMA4_THOUGHT,
    }
)  # fmt: skip
