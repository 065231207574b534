"""All known families, and which one a template belongs to. Read-only data."""

from __future__ import annotations

from adapters.models.families.deepseek import DEEPSEEK_V3_FAMILY, DEEPSEEK_V4_FAMILY, DEEPSEEK_V32_FAMILY
from adapters.models.families.gemma import GEMMA4_FAMILY
from adapters.models.families.glm import GLM_FAMILY
from adapters.models.families.gpt_oss import GPT_OSS_FAMILY
from adapters.models.families.kimi import KIMI_K2_FAMILY
from adapters.models.families.llama import LLAMA3, PYTHONIC_FAMILY
from adapters.models.families.minimax import MINIMAX_M2_FAMILY
from adapters.models.families.mistral import MISTRAL_FAMILY
from adapters.models.families.nemotron import NEMOTRON_V2_FAMILY
from adapters.models.families.plain import GENERIC, HERMES_FAMILY, SMOLLM2
from adapters.models.families.qwen import QWEN3, QWEN3_CODER_FAMILY
from adapters.models.family import ModelFamily

FAMILIES: tuple[ModelFamily, ...] = (
    GPT_OSS_FAMILY,
    GEMMA4_FAMILY,
    GLM_FAMILY,
    MINIMAX_M2_FAMILY,
    KIMI_K2_FAMILY,
    DEEPSEEK_V32_FAMILY,
    DEEPSEEK_V4_FAMILY,
    NEMOTRON_V2_FAMILY,
    QWEN3_CODER_FAMILY,
    QWEN3,
    HERMES_FAMILY,
    DEEPSEEK_V3_FAMILY,
    MISTRAL_FAMILY,
    PYTHONIC_FAMILY,
    LLAMA3,
    SMOLLM2,
    GENERIC,
)
"""The first that matches is a template's family, so those with the more telling marks come first."""


def find_family(name: str, chat_template: str) -> ModelFamily:
    """The family called `name`, or with `auto` the first one whose template this is: at the last, `GENERIC`.

    Raises `ValueError` that names the known families."""
    for family in FAMILIES:
        if family.name == name or (name == "auto" and family.matches(chat_template)):
            return family
    known = ", ".join(family.name for family in FAMILIES)
    raise ValueError(f"--model-family is {name!r}; known families are auto, {known}")
