"""The ways in which models mark their reasoning. Data, and the rule that reads one off a chat template."""

from __future__ import annotations

from adapters.models.formats.base import ReasoningFormat

THINK = ReasoningFormat("think", "<think>", "</think>")
SEED_THINK = ReasoningFormat("seed_think", "<seed:think>", "</seed:think>")
KIMI_THINK = ReasoningFormat("kimi", "◁think▷", "◁/think▷")
MISTRAL_THINK = ReasoningFormat("mistral", "[THINK]", "[/THINK]")
GEMMA4_THOUGHT = ReasoningFormat("gemma4", "<|channel>thought", "<channel|>")
GPT_OSS_ANALYSIS = ReasoningFormat("gpt-oss", "", "")


def reasoning_of(chat_template: str) -> ReasoningFormat | None:
    """The format whose markers a template mentions: a template has to name them to print or to remove reasoning."""
    for known in (SEED_THINK, KIMI_THINK, MISTRAL_THINK, GEMMA4_THOUGHT, THINK):
        if known.closer in chat_template:
            return known
    return None
