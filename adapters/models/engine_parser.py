"""What is asked of the engine's own parsers about one reply, and what they answer. Plain data, in no wire format.

A step makes at most one such call, so an engine reads either the calls or the reasoning of a model's replies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from adapters.models.formats.base import Call


@dataclass(frozen=True, slots=True)
class EngineParser:
    """The part of a reply that a parser of the engine reads, and that parser's name there."""

    reads: Literal["calls", "reasoning"]
    name: str

    @property
    def flag(self) -> str:
        """The setting that asks for it."""
        return "--tool-call-parser" if self.reads == "calls" else "--reasoning-parser"


@dataclass(frozen=True, slots=True)
class Question:
    """`text` is complete, with control tokens spelled out and without its stop token; `tools` are the request's."""

    parser: EngineParser
    text: str
    tools: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """The parts of a question's text. Where calls are read, `reasoning` is empty, and the other way round."""

    content: str
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
