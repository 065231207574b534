"""How a family writes tool calls and reasoning, as data plus one pure function. No state."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning stands between two markers at the start of a reply."""

    opener: str
    closer: str


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A call stands between two markers; `parse` reads what is between them.

    `parse(body)` gives `(name, arguments as JSON text)`, or None if the body is no well-formed call."""

    opener: str
    closer: str
    parse: Callable[[str], tuple[str, str] | None]


def parse_hermes(body: str) -> tuple[str, str] | None:
    """`{"name": ..., "arguments": {...}}`, as Hermes, Qwen2.5 and Qwen3 write calls."""
    try:
        call = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        return None
    arguments = call.get("arguments", {})
    if not isinstance(arguments, dict):
        return None
    return call["name"], json.dumps(arguments, ensure_ascii=False)


HERMES = ToolFormat(opener="<tool_call>", closer="</tool_call>", parse=parse_hermes)
THINK = ReasoningFormat(opener="<think>", closer="</think>")
