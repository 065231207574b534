"""A model family: what differs from one family to the next and cannot be read off template and tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from adapters.models.formats.base import ReasoningFormat, ToolFormat


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """`matches(chat_template)` recognises the family; `stop_tokens` are spellings at which its engine stops
    besides the tokenizer's `eos_token` (from the family's `generation_config.json`), `closers` what its templates
    print in the place of one once a reply is history. `tools` is its call format, None if it has none; `reasoning`
    is given only where the template does not name its markers (`formats.reasoning.reasoning_of`)."""

    name: str
    matches: Callable[[str], bool]
    stop_tokens: tuple[str, ...] = ()
    closers: tuple[str, ...] = ()
    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
