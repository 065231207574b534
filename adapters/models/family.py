"""A model family: what differs from one family to the next and cannot be read off template and tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from adapters.models.formats import ReasoningFormat, ToolFormat


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """`matches(chat_template)` recognises the family; `stop_tokens` are spellings at which its engine stops
    besides the tokenizer's `eos_token` (from the family's `generation_config.json`)."""

    name: str
    matches: Callable[[str], bool]
    stop_tokens: tuple[str, ...] = ()
    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
